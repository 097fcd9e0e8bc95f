"""Packed rows as other tools leave them, and what their separate documents train on."""

from itertools import accumulate

from loader_options import make_loader
from target_rows import ONE, OPTIONS

from dcp_dsl import Spec


def joined(documents):
    return [token for document in documents for token in document]


def lengths(documents):
    return [len(document) for document in documents]


def ends(documents):
    return list(accumulate(lengths(documents)))


def positions(documents, first=0):
    return [at + first for document in documents for at in range(len(document))]


def numbers(documents, first=1):
    return [number for number, own in enumerate(documents, start=first) for _ in own]


PACKERS = {
    "TRL": lambda docs: {"seq_lengths": lengths(docs)},
    "TRL, before": lambda docs: {"position_ids": positions(docs)},
    "LLaMA-Factory": lambda docs: {
        "attention_mask": numbers(docs), "position_ids": positions(docs),
    },
    "axolotl": lambda docs: {"attention_mask": numbers(docs), "length": sum(lengths(docs))},
    "torchtitan": lambda docs: {"positions": positions(docs)},
    "torchtune": lambda docs: {"input_pos": positions(docs), "seq_lens": lengths(docs)},
    "tunix": lambda docs: {"segment_ids": numbers(docs), "segment_positions": positions(docs)},
    "MaxText": lambda docs: {
        "inputs_segmentation": numbers(docs), "inputs_position": positions(docs),
    },
    "T5X": lambda docs: {
        "decoder_segment_ids": numbers(docs), "decoder_positions": positions(docs),
    },
    "NeMo": lambda docs: {"seq_start_id": [0, *ends(docs)[:-1]]},
    "NeMo, padded": lambda docs: {"cu_seqlens": [0, *ends(docs), -1, -1]},
    "DataCollatorWithFlattening": lambda docs: {
        "position_ids": [positions(docs)], "seq_idx": [numbers(docs, 0)],
        "cu_seq_lens_q": [0, *ends(docs)], "cu_seq_lens_k": [[0, *ends(docs)]],
    },
    "verl": lambda docs: {"position_ids": positions(docs), "attention_mask": [1] * ends(docs)[-1]},
    "Qwen-VL": lambda docs: {"position_ids": [positions(docs)] * 3},
    "OLMo": lambda docs: {"doc_lens": lengths(docs), "max_doc_lens": max(lengths(docs))},
    "llm-foundry": lambda docs: {"sequence_id": numbers(docs, 0)},
    "open-instruct": lambda docs: {"attention_masks": numbers(docs)},
    "others": lambda docs: {
        "document_ids": [7 * n for n in numbers(docs)], "cu_doc_lens": [0, *ends(docs)],
        "packed_seq_ids": numbers(docs), "sequence_boundaries": ends(docs)[:-1],
    },
}  # fmt: skip
"""Columns in which each tool states packed documents."""
SAY_NOTHING = {"length", "max_doc_lens"}


def separate(documents, counted=None, *, counts_on=False):
    """Return tokens, positions and (predicting token, id) of documents trained one by one.

    `counted` says of each token whether it is a target; `counts_on`: positions do not begin anew.
    """
    tokens, places, targets = [], [], []
    for document in documents:
        for at, token in enumerate(document):
            place = len(tokens)
            if at and (counted is None or counted[place]):
                targets.append((place - 1, token))
            tokens.append(token)
            places.append(place if counts_on else at)
    return tokens, places, targets


def trained(rows, mask="mask docs = causal", name="docs", **options):
    """Return the same of what a loader gives for rows of one batch, on one rank."""
    value = Spec.from_text(mask).mask(name) if isinstance(mask, str) else mask
    ((data, _),) = make_loader(rows, value, **{**OPTIONS, "cluster": ONE, **options})
    targets = zip(data.target_rows.tolist(), data.target_ids.tolist(), strict=True)
    return data.tokens.tolist(), data.position_ids.tolist(), sorted(targets)
