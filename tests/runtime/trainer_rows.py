"""The rows of the runs of test_trainer.py."""

import torch


def trained_rows(kind):
    """Return the rows of a run: all, some that do not fit their mask as well, or some of all."""
    found = rows()
    if kind in ("few", "stream"):
        return found[: 4 if kind == "few" else 5]
    if kind == "unfit":  # the second fills a pack
        wrong = [{**found[n], "answers": [1]} for n in (1, 3)]
        wrong[1] |= {name: (2 * found[3][name])[:45] for name in ("tokens", "labels")}
        return [*found[:3], wrong[0], *found[3:5], wrong[1]]
    return found


def fits(row):
    return row["question"] + sum(row["answers"]) == len(row["tokens"])


def evaluated_rows(name):
    """Return rows for an evaluation; in batches of those of "a" every batch has as many targets."""
    if name == "b":
        return rows()[:3]
    generator = torch.Generator().manual_seed(4)
    return [row_of(5, [4 + number, 11 - number], generator) for number in range(4)]


def rows():
    """Return rows with labels; the loader leaves out targets that do not see the token before."""
    generator = torch.Generator().manual_seed(3)
    answers = [[4 + number % 5, 3 + number * 7 % 11] for number in range(8)]
    return [row_of(5, lengths, generator) for lengths in answers]


def row_of(question, answers, generator):
    length = question + sum(answers)
    tokens = torch.randint(0, 50, (length,), generator=generator).tolist()
    labels = [-100] * (question - 1) + tokens[question - 1 :]
    return {"tokens": tokens, "labels": labels, "question": question, "answers": answers}


def packed(data, budget, length=lambda row: len(row["tokens"])):
    """Pack rows in order: a pack ends where the next row does not fit."""
    packs = [[]]
    for row in data:
        if sum(map(length, [*packs[-1], row])) > budget:
            packs.append([])
        packs[-1].append(row)
    return packs
