"""A trainer whose own loss is a mean; `dcpm audit` says what is wrong with it."""

import tempfile

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class OwnLoss(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")[:, 1:].flatten()
        logits = model(**inputs).logits[:, :-1].flatten(0, 1)
        return functional.cross_entropy(logits, labels)


def pad(rows):
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    return {"input_ids": ids.clamp(min=0), "labels": ids}


torch.manual_seed(0)
rows = [torch.randint(0, 64, (n,)) for n in (24, 13, 31, 18, 27, 22, 15, 29)]
sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 64, "num_hidden_layers": 1}
model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4))
with tempfile.TemporaryDirectory() as folder:
    options = TrainingArguments(
        folder,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        save_strategy="no",
        report_to=[],
    )
    OwnLoss(model, options, train_dataset=rows, data_collator=pad).train()
