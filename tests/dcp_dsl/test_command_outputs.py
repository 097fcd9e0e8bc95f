"""Everything that the commands of the language print, as text and as JSON, about small masks."""

import json
import re
import shlex
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from short_texts import same_everywhere, short

from dcp_dsl.cli import dcpm
from dcp_dsl.interchange.names import FORMATS

TRAIN = """segment part = question[question_len] branch answer[answer_lens]*
segment word = ids(words)
segment source = phrase[source_lens]*
token evict
mask near(w: tokens = 3) = causal and q - k < w
mask shared = paths
mask comb = causal and (q - k) % 3 == 0
mask kept = causal and q < k.evict
mask alike = q.word == k.word
mask odd = q * k % 7 < 3
@keys(source) mask across = k.phrase >= 1 or q in question
@partial mask none_ = q < k and k < q
stack mixed = 2 of near, heads { 0..1: shared 2: shared rest: comb }, linear, near
sample tiny(question_len = 2, answer_lens = [3, 2])
sample words(words = [0, 1, 0, 2, 1, 0, 2, 2], len = 8)
sample mails(evict = [9, 2, 9, 4, 5, 9, 7, 8], len = 8)
sample pair(question_len = 1, answer_lens = [4, 1], source_lens = [2, 3])
"""
FILES = {
    "train.dcpm": TRAIN,
    "one.dcpm": "mask only = causal and q // 2 == k // 2\n",
    "stack.dcpm": "segment doc = [lens]*\nstack two = sliding(2), causal per doc\n",
    "empty.dcpm": "",
    "plain.dcpm": "segment doc = [lens]*\nmask a = causal and same(doc)\nmask b = sliding(3)\n",
    "wrong.dcpm": "mask a = casual and q = k\nmask b = sliding(windw = 3) and missing\n"
    "@ahead @partial mask c = k < q\nmask d = a\n",
    "warned.dcpm": "mask a = causal and true\nsegment doc = [lens]*\nsegment idle = every 4\n"
    "sample s(lens = [2, 1])\ncheck a implies causal on s\ncheck causal per doc total\n",
    "unsure.dcpm": "check causal and q // (len - len) < 1 equals causal\n",
    "torn.dcpm": "mask a = causal and\n",
    "untidy.dcpm": "mask a=causal\n\n\n\nmask b =a # twice",
    "crlf.dcpm": "mask a = casual\r\nmask b=full\r\n",
    "rest.dcpm": "segment p = head[head_len] body[..]\nmask a = causal and k in head\n",
    "cr.dcpm": "mask a = causal # x\rmask b = casual\r",
    "nul.dcpm": "mask a = causal\0",
    "keys.dcpm": "segment b = y[m]\n@keys(b, top_left) mask m = causal and q - k < 2\n"
    "sample tiny(m = 2, len = 2)\ncheck m implies causal on tiny\n",
    "tidy.dcpm": "mask a = causal\n",
    "rows.dcpm": 'for "*rows.jsonl" having question_len use shared_question\nfor "*" use causal\n',
    "rows.jsonl": '{"question_len": 2, "answer_lens": [1, 1]}\n{"question_len": 3, '
    '"answer_lens": []}\n{"question_len": 1, "answer_lens": [2]}\n',
    "bad_rows.jsonl": '{"question_len": -2, "answer_lens": [1]}\n{"question_len": 3, '
    '"answer_lens": [1]}\n',
    "docs.jsonl": '{"lens": [2, 1, 3], "other": 3}\n{"lens": [4], "other": 1}\n',
    "long.jsonl": json.dumps({"doc_lens": [3] * 90}) + "\n",
    "other.jsonl": '{"text": "a", "n": 1}\n',
    "sample.json": '{"question_len": 1, "answer_lens": [2, 2]}',
}
TINY = "--mask shared --sample tiny"


PLAIN = {"COLUMNS": "60", "NO_COLOR": "", "FORCE_COLOR": ""}
"""Also restores these variables, which `--color` sets."""


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Run commands in a folder of examples; return what they print, by the command."""
    for name, text in FILES.items():
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "binary.dcpm").write_bytes(b"\xff\xfe\x00")
    monkeypatch.chdir(tmp_path)
    return lambda *commands: {command: _told(command) for command in commands}


def _told(command: str) -> str:
    """Run a command; return its output, its messages, its error and its exit status."""
    given, _, line = command.rpartition(" | ")
    text = FILES[given] if given else None
    found = CliRunner(env=PLAIN).invoke(dcpm, shlex.split(line), input=text)
    is_error = found.exception is not None and not isinstance(found.exception, SystemExit)
    error = f"{type(found.exception).__name__}: {found.exception}" if is_error else ""
    status = getattr(found.exception, "exit_code", found.exit_code)
    parts = (_read(found.stdout), found.stderr, error, f"exit {status}" if status else "")
    text = same_everywhere("\n".join(part.rstrip() for part in parts if part.rstrip()))
    text = re.sub(r"\b([0-9a-f]{8})[0-9a-f]{56}\b", r"\1...", text)
    return text.replace(f"version: {version('dcp-dsl')}", "version: VERSION")


def _read(output: str) -> str:
    """Write documents of JSON, one or a line each, as short texts."""
    lines = [output] if output.startswith("{\n") else output.splitlines(keepends=True)
    return "".join(f"{short(json.loads(e))}\n" if e.startswith("{") else e for e in lines)


def test_show(told, snapshots):
    found = told(
        "show one.dcpm", f"show train.dcpm {TINY}", f"show train.dcpm {TINY} --json",
        "show train.dcpm --mask near --len 40 --width 10",
        "show train.dcpm --mask 'near(5) and not near' --len 12",
        "show train.dcpm --mask mixed --sample tiny", "show stack.dcpm --sample 'lens = [2, 3]'",
        "show train.dcpm --mask mixed --sample tiny --json", "show stack.dcpm",
        "show train.dcpm --mask across --sample pair", "show train.dcpm --mask kept",
        "show train.dcpm --mask alike --json", "show train.dcpm --mask none_ --len 5",
        "show train.dcpm --mask shared --sample sample.json",
        'show train.dcpm --mask shared --sample \'{"question_len": 1, "answer_lens": [2]}\'',
        "show train.dcpm --mask shared --sample 'answer_lens = [2]'",
        "show train.dcpm --mask shared --sample 'answer_lens = [2], len = 5'",
        "show train.dcpm --mask shared --sample 'question_len = 3, evict = [1]'",
        "show --mask document --sample 'doclens = [3]'", "show rest.dcpm --sample 'other = 3'",
        "show train.dcpm --mask kept --sample 'len = 3'", "show train.dcpm --mask shared --len 9",
        "show train.dcpm --mask shared --sample tiny --len 9", "show train.dcpm --mask near",
        "show --mask 'streaming(2, 3)' --len 0", "show --mask full --len 2k --width 8",
        "show --mask 'q == k' --len 324", "show --mask causal --len 4q",
        "show --mask causal --len '-4'", "show --len 3", "show train.dcpm", "show empty.dcpm",
        "show gone.dcpm", "show torn.dcpm --mask a",
        "show train.dcpm --mask gone", "show train.dcpm --mask 'near(' --len 3",
        "show one.dcpm --svg one.svg", "show one.dcpm --png one.png --svg two.svg --json",
        "show train.dcpm --mask mixed --sample tiny --svg mixed.svg", "show one.dcpm --width 4",
        "show one.dcpm --svg gone/one.svg", "one.dcpm | show -",
        f"--color always show train.dcpm {TINY}",
    )  # fmt: skip
    found["an ASCII terminal"] = (
        CliRunner(charset="ascii", env=PLAIN).invoke(dcpm, ["show", "one.dcpm"]).output
    )
    snapshots.check("show", found)


def test_explain(told, snapshots):
    snapshots.check("explain", told(
        "explain e119", "explain E119 --json", "explain E999", "explain E013",
        f"explain train.dcpm {TINY} --block 2 --head-dim 64",
        f"explain train.dcpm {TINY} --block 2 --json", "explain causal --len 16k",
        "explain train.dcpm --mask kept --sample mails --block 4",
        "explain train.dcpm --mask comb --len 40 --block 16",
        "explain train.dcpm --mask alike --sample words --block 2",
        "explain train.dcpm --mask odd --len 30 --block 8", "explain full --len 0",
        "explain train.dcpm --mask across --sample pair --block 2",
        "explain train.dcpm --mask across --sample pair --block 2 --json",
        "explain train.dcpm --mask none_ --len 300", "explain one.dcpm --len 30 --block 4",
        "explain train.dcpm --mask comb --len 16_385 --block 4k",
        "explain train.dcpm --mask 'local(3)' --len 9 --block 4 --head-dim 1",
        "explain train.dcpm --mask mixed --sample tiny --block 4",
        "explain train.dcpm --mask mixed --core", "explain train.dcpm --mask near --core",
        "explain train.dcpm --mask mixed --core --json",
        "explain --mask 'sta(tile = 2, w = 3, h = 3)' --core", "explain",
        "explain one.dcpm --block 0", "explain one.dcpm --block x", "explain near --mask causal",
        "explain gone", "explain one.dcpm --head-dim 0", "one.dcpm | explain -",
        "explain shared_question --sample "
        f"'question_len = 300, answer_lens = {[10 + n for n in range(25)]}'",
    ))  # fmt: skip


def test_blocks_and_diff(told, snapshots):
    snapshots.check("blocks_and_diff", told(
        f"blocks train.dcpm {TINY} --block 2", f"blocks train.dcpm {TINY} --block 2 --json",
        "blocks --mask causal --len 2k", "blocks --mask causal --len 3", "blocks --len 3",
        "blocks train.dcpm --mask across --sample pair --block 3",
        "blocks train.dcpm --mask across --sample pair --block 3 --json",
        "blocks train.dcpm --mask kept --sample mails --block 4",
        "blocks train.dcpm --mask none_ --len 9 --block 4", "blocks one.dcpm --block 0",
        "blocks one.dcpm --block 1 --len 2",
        "diff causal 'full minus q < k' --len 6", "diff 'sliding(3)' causal --len 1000",
        "diff causal 'sliding(3)' --len 1000", "diff 'sliding(3)' 'local(2)' --len 7",
        "diff 'q < k' causal --len 7", "diff 'sliding(3)' 'local(2)' --len 7 --json",
        "diff causal 'sliding(9)' --len 7 --json", "diff 'sliding(2)' causal --len 7 --json",
        "diff shared causal --spec train.dcpm --sample tiny",
        "diff alike kept --spec train.dcpm --sample "
        "'words = [0, 1, 0], evict = [3, 2, 3], len = 3'",
        "diff across across --spec train.dcpm --sample pair",
        "diff across 'across and q < 3' --spec train.dcpm --sample pair",
        "diff across causal --spec train.dcpm --sample pair",
        "diff causal one.dcpm", "diff train.dcpm causal", "diff causal near --len 3",
        "diff causal full", "diff shared causal --spec train.dcpm",
    ))  # fmt: skip


def test_export_and_import(told, snapshots):
    np.save("mask.npy", np.tri(6, dtype=bool))
    Path("pickled.npz").write_bytes(b"\x80\x04pickled")
    Path("nothing.npz").touch()
    found = told(
        *(f"export train.dcpm {TINY} --format {name} --out {name}.npz" for name in FORMATS),
        f"export train.dcpm {TINY} --format flex --out flex.py --block 2x4 --json",
        f"export train.dcpm {TINY} --format flash4 --out flash4.json --block 4 --json",
        f"export train.dcpm {TINY} --format magi --out magi.json --json",
        f"export train.dcpm {TINY} --format flash4 --out flash4.py",
        "export train.dcpm --mask across --sample pair --format dense --out cross.npz",
        "export train.dcpm --mask across --sample pair --format flex --out x.py --block 4",
        "export train.dcpm --mask comb --len 9 --format varlen --out x.npz",
        "export train.dcpm --mask none_ --len 0 --format dcp --out none.json",
        "export train.dcpm --mask comb --len 12 --format dcp --out x.npz",
        *(f"export train.dcpm {TINY} --format flex --out x.py --block={block}"
          for block in ("2x", "axb", "4x0", "4x4x4", "-1")),
        f"export train.dcpm {TINY} --format dense --out x.txt",
        f"export train.dcpm {TINY} --format dense --out gone/x.npz",
        f"export train.dcpm {TINY} --format other --out x.npz", "export train.dcpm --out x.npz",
        f"export train.dcpm {TINY} --format dense",
        "import dense.npz", "import dcp.npz --json", "import magi.json --svg magi.svg",
        f"import dense.npz --equals train.dcpm {TINY}",
        "import dense.npz --equals train.dcpm --mask shared --sample 'question_len = 2, "
        "answer_lens = [2, 3]'",
        "import flashmask.npz --mask causal", "import flashmask.npz --mask causal --json",
        "import dcp.npz --mask 'sliding(2)' --svg x.svg", "import dcp.npz --mask full --len 7",
        "import magi.npz --mask full --len 8", "import flex.npz", "import none.json",
        "import dense.npz --format magi", "import gone.npz", "import train.dcpm",
        "import dense.npz --equals train.dcpm", "import cross.npz", "import .",
        "import mask.npy", "import mask.npy --format dense --mask causal",
        "import pickled.npz", "import nothing.npz --format dense",
    )  # fmt: skip
    source = Path("flex.py").read_text()
    found["flex.py"] = source
    snapshots.check("exchange", found)


def test_init(told, snapshots):
    found = told(
        "init", "init --out masks.dcpm", "init rows.jsonl --out -",
        "init docs.jsonl --out docs.dcpm", "init long.jsonl --out long.dcpm",
        "init other.jsonl --out other.dcpm", "init gone.jsonl --out -",
        "init rows.jsonl --out gone/x.dcpm", "init bad_rows.jsonl --out -", "check masks.dcpm",
    )  # fmt: skip
    for name in ("masks", "docs", "long", "other"):
        found[f"{name}.dcpm"] = Path(f"{name}.dcpm").read_text()
    snapshots.check("init", found)


def test_check(told, snapshots):
    forms = ("full", "concise", "json", "github", "sarif")
    found = told(
        *(f"check wrong.dcpm warned.dcpm --output-format {form}" for form in forms),
        "check tidy.dcpm", "check plain.dcpm warned.dcpm --verdicts", "check train.dcpm --verdicts",
        "check unsure.dcpm --strict", "check unsure.dcpm --verdicts",
        "check warned.dcpm --strict --json --verdicts",
        "check gone.dcpm tidy.dcpm binary.dcpm nul.dcpm .", "check gone.dcpm --json",
        "wrong.dcpm | check -", "check cr.dcpm --output-format concise",
        "check keys.dcpm --verdicts",
        "check wrong.dcpm tidy.dcpm --diff", "check crlf.dcpm untidy.dcpm --diff",
        "check tidy.dcpm --fix", "wrong.dcpm | check - --fix", "crlf.dcpm | check - --fix --json",
        "check crlf.dcpm --fix", "check wrong.dcpm --fix --output-format concise",
        "check tidy.dcpm --json --output-format github", "check",
        "check rows.dcpm --dataset rows.jsonl", "check rows.dcpm --dataset rows.jsonl --json",
        "check rows.dcpm --dataset bad_rows.jsonl", "check rows.dcpm --dataset gone",
        "check plain.dcpm --dataset rows.jsonl", "check empty.dcpm --dataset rows.jsonl",
        "check rows.dcpm tidy.dcpm --dataset rows.jsonl",
        *(f"check rows.dcpm --dataset rows.jsonl {flag}"
          for flag in ("--fix", "--diff", "--verdicts", "--strict", "--output-format concise")),
        "check torn.dcpm --dataset rows.jsonl", "--color always check tidy.dcpm wrong.dcpm",
    )  # fmt: skip
    found["crlf.dcpm"] = repr(Path("crlf.dcpm").read_bytes())
    snapshots.check("check", found)


def test_fmt(told, snapshots):
    found = told(
        "fmt untidy.dcpm tidy.dcpm --check", "fmt untidy.dcpm crlf.dcpm tidy.dcpm --diff",
        "fmt untidy.dcpm tidy.dcpm --diff --json", "fmt untidy.dcpm --check --json",
        "untidy.dcpm | fmt -", "untidy.dcpm | fmt - --json", "tidy.dcpm | fmt - --check",
        "untidy.dcpm | fmt - --diff", "untidy.dcpm | fmt - --diff --json",
        "fmt torn.dcpm gone.dcpm untidy.dcpm", "fmt untidy.dcpm", "fmt torn.dcpm --json",
        "fmt crlf.dcpm --json", "fmt tidy.dcpm --check", "fmt",
    )  # fmt: skip
    for name in ("untidy", "crlf", "torn"):
        found[f"{name}.dcpm"] = repr(Path(f"{name}.dcpm").read_bytes())
    snapshots.check("fmt", found)


def test_the_command_itself(told, snapshots):
    found = told("chek", "zzz", "show --help", "explain -h", "-x", "--color red show")
    found["--version"] = re.sub(r"\d\S*", "VERSION", _told("--version"))
    snapshots.check("dcpm", found)
