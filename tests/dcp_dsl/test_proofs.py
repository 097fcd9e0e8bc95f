"""Proofs hold on every sample of the dense oracle, and show what they should."""

from random import Random

import numpy as np
import pytest
from random_masks import LAYOUTS, draw_masks, write_sample

from dcp_dsl import DatasetError, Sample, Spec, SpecError, check_report, dense_mask
from dcp_dsl.elaboration import nodes
from dcp_dsl.proof.numbers import Facts
from dcp_dsl.proof.proving import never
from dcp_dsl.proof.worlds import Bound, Var, all_of, any_of, has_case, negate

PER = {"same": np.eye, "behind": lambda n: np.tri(n, k=-1), "before": lambda n: 1 - np.tri(n)}


def proved(mask):
    """Return the relations between query and key in which a mask is proved to have no pair."""
    return [r for r in PER if never(mask.core, (r,))]


def test_no_sample_contradicts_a_proof():
    rng = Random(0)
    contradictable = 0
    for text, mask in draw_masks(10, 30):
        spec = Spec.from_text(f"{LAYOUTS}{text}")
        name = mask.name
        for claim in (name, f"not {name}", f"{name} per doc", f"causal and not {name}"):
            claimed = spec.mask(claim)
            if not (relations := proved(claimed)):
                continue
            for _ in range(4):
                columns, length = write_sample(rng)
                sample = Sample({c: columns[c] for c in claimed.columns}, length)
                try:
                    seen = dense_mask(claimed, sample)
                except (DatasetError, SpecError):
                    continue
                contradictable += 1
                for relation in relations:
                    pairs = seen & PER[relation](length).astype(bool)
                    assert not pairs.any(), (text, claim, relation)
    assert contradictable >= 120


@pytest.mark.parametrize(
    "claim",
    ["answer sees question", "tail sees text, question", "body sees head", "image sees text",
     "question sees self causally", "answer sees all causally within 4"],
)  # fmt: skip
def test_rules_are_causal_by_the_order_of_the_layout_or_by_their_words(claim):
    layout = (
        "segment part = question[a] (text[b] image[c])* answer[d] tail[..]\n"
        "segment pack = doc(head[e] body[f]*)*\n"
    )
    mask = Spec.from_text(layout).mask(f"{{ {claim} }}")
    is_proved = never(mask.core, ("before",))
    # A `text` of a later repetition stands behind an `image` of an earlier one.
    assert is_proved == (claim not in ("image sees text", "body sees head"))


def test_a_position_that_a_caller_gives_is_another_number_inside_per_and_perhaps_none():
    text = "segment doc = words[lens]* tail[..]\n@ahead @partial mask m(p: pos) = {}"
    for body in ("((p < 2) per words) and p < 2", "(p < 2 or p >= 2) and q == k"):
        report = check_report(text.format(body))
        assert "W206" not in {found.code for found in report.diagnostics}
    both, either = (
        Spec.from_text(text.format(body)).mask(f"m({at})").bind(Sample({"lens": [3, 3]}, 8))
        for body, at in (("(p < 2) per words", "q"), ("p < 2 or p >= 2", "q.words.start"))
    )
    # `p < 2` would say less than `(p < 2) per words`, and one of two cases less than anything.
    assert (both.num_pairs, either.num_pairs) == (2 * 2 * 3, 6 * 8)


def test_a_formula_has_a_case_only_if_its_leaves_can_agree():
    x, y = Bound("x", 3), Var("y")
    assert has_case(all_of([x, y]))
    assert not has_case(all_of([x, negate(Bound("x", 5))]))
    assert not has_case(all_of([x, y, negate(y)]))
    assert has_case(any_of([all_of([y, negate(y)]), negate(x)]))


def test_terms_of_sums_come_in_the_order_in_which_a_proof_meets_them():  # not by hashes
    facts = Facts("behind")
    unknowns = [facts.add((str(number),), "q") for number in range(9)]
    total = unknowns[0]
    for unknown in reversed(unknowns[1:]):
        total = total.plus(unknown)
    assert [unknown.family for unknown, _ in total.terms] == [(str(n),) for n in range(9)]


# ---- which mask implies which other one, for every sample ----------------------------------------


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
