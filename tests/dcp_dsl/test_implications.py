"""Of many pairs of masks: does one imply the other, for every sample? Samples refute, proofs prove.

A proof must not contradict the dense masks of any sample; what neither proves nor refutes is kept
in a snapshot, so that proofs do not become weaker unseen.
"""

from random import Random

import numpy as np
import pytest
from random_masks import LAYOUTS, write_sample

from dcp_dsl import Sample, Spec, dense_mask
from dcp_dsl.elaboration import nodes
from dcp_dsl.proof.proving import never

TEXT = LAYOUTS + "token sel[2]\n"
GROUPS = {
    "distances": """
        false
        q == k
        causal
        sliding(3)
        q - k <= 4
        abs(q - k) < 3
        q // 3 == k // 3
        q // 2 - k // 2 < 2
        2 * q - 2 * k < 7
        0 - 3 * k <= 5 - 3 * q
        max(q, k) < 6
        min(q, 5) >= min(k, 5)
        clamp(q, 2, 5) >= clamp(k, 2, 5)
        k < 6
        k != 5 and k != 6
        k % 4 > 4
        k % 4 <= q % 4
        q % 3 <= 2 and q * k >= 0
        (q + 1) * (k + 1) > 0
        (q - k) % 2 == 0
        7 // 2 == 3 and 7 % 4 == 3
        q // row.n == k // row.n
        q - k < row.n
        len > 4
        len - q > 0
        len - k > 3
        true""",
    "parts": """
        k in question
        same(answer)
        same(part)
        k in last(answer, 2)
        k in last(answer)
        k in first(answer)
        k in first(last(answer, 2))
        k.answer <= q.answer
        k.answer < 2
        q.answer < k.answer
        q.answer.start > k
        q.answer.end <= k.answer.start
        k.answer.len > 1
        q.answer.len == k.answer.len
        k.answer.pos < k.answer.len
        k.answer.count > 1
        answer.count > 1
        same(answer) and q in first(last(answer, 2))
        same(inner)
        q.inner == k.inner
        q < k
        { answer sees question, self causally }
        true""",
    "a rest": """
        same(text)
        q.text == k.text
        q in text and k in image
        q.image < k.image
        k in tail
        q < k
        same(seq)
        { tail sees all }
        { text sees all causally within 4 }
        sliding(4)
        true""",
    "groups and frames": """
        same(doc)
        causal
        causal and same(doc)
        causal per doc
        sliding(3) per doc
        k in head
        same(head)
        same(body)
        q.body == k.body
        k.doc == q.doc
        q.doc - k.doc < 2
        k >= q.doc.start
        k < q.doc.end
        k.doc.pos <= q.doc.pos
        q.body.start >= q.doc.start
        (k < 4) per doc
        k.doc.pos < 4
        (len > 2) per doc
        q.doc.len > 2
        (body.count > 0) per doc
        q // 3 == k // 3
        (q // 3 == k // 3) per doc
        either(causal, 2) per doc
        after(q, 2)
        (q // q.doc.len == k // k.doc.len) per doc
        true""",
    "trees": """
        same(thread)
        paths
        paths(try)
        paths and q.path - k.path < 4
        k.path <= q.path
        k.path < 3
        (k.path < 3) per try
        q in step and k in note and causal
        q in note and k in step and same(try) and causal
        same(try)
        same(note)
        causal
        true""",
    "nests": """
        same(plant)
        same(twig)
        same(bud)
        q.bud == k.bud and same(twig)
        same(slice)
        q in fruit and k in trunk and same(plant)
        q in trunk and k in fruit and same(plant)
        k in last(bud)
        k in last(twig)
        same(bud) and q in first(last(bud, 2))
        k in first(last(bud, 2))
        causal
        true""",
    "columns": """
        k in mark
        same(mark)
        k + 1 in mark
        same(role)
        q.role == k.role
        q.role <= k.role
        k in planner
        q in solver and k in planner
        same(span)
        q in span
        same(shred)
        same(turn)
        q.turn.start <= k
        k.turn.pos < 3
        role.count > 1
        q.weight == k.weight
        q.weight < 3
        q.weight < 3 and k.weight > 5
        q < k.evict
        k in q.sel
        k in k.sel
        q // k.weight == k // k.weight
        same(mark) and q.weight == k.weight
        true""",
}


def draw_samples(masks):
    """Yield the dense masks on random samples, bool ``[masks, pairs]``."""
    rng = Random(5)
    for _ in range(20):
        columns, length = write_sample(rng, longest=12)
        columns["n"] = rng.randint(1, 6)
        columns["sel"] = [[rng.randint(-1, length - 1) for _ in range(2)] for _ in range(length)]
        samples = (Sample({c: columns[c] for c in mask.columns}, length) for mask in masks)
        dense = (dense_mask(mask, sample) for mask, sample in zip(masks, samples, strict=True))
        yield np.array([seen.ravel() for seen in dense])


@pytest.mark.parametrize("group", GROUPS)
def test_masks_imply_others_as_samples_and_proofs_say(group, snapshots):
    names = [line.strip() for line in GROUPS[group].strip().splitlines()]
    spec = Spec.from_text(TEXT)
    masks = [spec.mask(name) for name in names]
    is_refuted = np.zeros((len(masks), len(masks)), np.bool_)
    for seen in draw_samples(masks):
        is_refuted |= (seen[:, None] & ~seen).any(axis=2)
    lines = [f"{number:2} {name}" for number, name in enumerate(names)]
    for number, mask in enumerate(masks):
        row = f"{number:2} implies"
        for other, refuted in zip(masks, is_refuted[number].tolist(), strict=True):
            is_proved = never(nodes.And((mask.core, nodes.Not(other.core))))
            assert not (is_proved and refuted), (mask.name, other.name)
            row += " =" if is_proved else " ." if refuted else " ?"
        lines.append(row)
    snapshots.check(f"implications_{group.replace(' ', '_')}", {group: "\n".join(lines)})
