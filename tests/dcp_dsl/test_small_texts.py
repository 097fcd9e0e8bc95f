"""Small texts, right and wrong, and all that is made of them: findings, fixes, core programs."""

import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from textwrap import indent
from typing import get_args

from dcp_dsl import Spec, format_source
from dcp_dsl.checks.checker import check_scope
from dcp_dsl.checks.findings import UNKNOWN
from dcp_dsl.checks.imports import build_scope
from dcp_dsl.checks.masks import MaskChecker
from dcp_dsl.checks.scope import keys_of_mask, library_names, segment_names
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import (
    column_depths,
    has_branches,
    parent_columns,
    reads_length,
    show_mask,
    show_number,
)
from dcp_dsl.language_server.document import Document
from dcp_dsl.syntax.diagnostics import fix_text
from dcp_dsl.syntax.mistakes import MESSAGES
from dcp_dsl.syntax.parser import parse, parse_all, parse_expression
from dcp_dsl.syntax.tokens import scan
from dcp_dsl.syntax.trees import children

# ---- syntax --------------------------------------------------------------------------------------

STATEMENTS = """
mask a(p: tokens = 4k, m: mask) = (m or p <= k < len) where b = every p in c, f(t) = t // 2 % 3
@ahead(s) mask r = { a sees self causally within 3, all b sees a } per s minus not -q.s == k + 1
mask e = k not in last(b, 2) and true and e(w = 3)
segment s = a[n] (b[m]* c[len])* d[..]
segment t = branch x(y[n])* from p
segment u = ids(col) as a, b
token v[4] = c
column w[3] in image = c
import a, b from "f.dcpm"
stack s = 5 of a, heads { 0..1: b 2: d rest: c }, linear
for "g" having a, b use m(w = a) with c = d, e = f
sample s(a = 3, b = [[1, -2], []], c = true)
check a implies b on s
check a total
dcpm 1
""".strip().splitlines()


def told_of_syntax(text):
    """Say where a statement stops making sense; what the table of mistakes says is left out."""
    found = parse_all(text).diagnostics
    if not found:
        return "fine"
    (first, *_) = found
    place = f"`{text[first.start : first.end]}`"
    usual = MESSAGES.get(first.code)
    message = first.message if usual is None or first.message != usual.message else ""
    hint = first.hint if usual is None or first.hint != usual.hint else ""
    return " ".join(filter(None, [first.code, message.removeprefix(place) or place, hint]))


def test_every_damage_to_a_statement_is_told_in_its_place(snapshots):
    texts = {}
    for statement in STATEMENTS:
        lines = []
        for token in scan(statement)[1:]:
            before, behind = statement[: token.span.start], statement[token.span.end :]
            damages = {
                "without": f"{before}{behind}", "behind x": f"{before} x {token.text}{behind}",
                "as 7": f"{before}7{behind}", "the end": before,
            }  # fmt: skip
            told = {}
            for damage, text in damages.items():
                told.setdefault(told_of_syntax(text), []).append(damage)
            lines.append(token.text)
            lines += [f"    {', '.join(which)}: {what}" for what, which in told.items()]
        texts[statement] = "\n".join(lines)
    snapshots.check("damaged_statements", texts)


# ---- names and kinds -----------------------------------------------------------------------------

LAYOUTS = """
segment part = question[question_len] answer[answer_lens]*
segment doc = [doc_lens]*
segment seq = page(text[text_lens] image[image_lens]*)* others[..]
segment thread = ask[ask_len] branch note[note_lens]* from note_from
segment source = phrase[source_lens]*
segment tile = every 256
segment words = ids(word_ids)
token evict
token chosen[4] = sel
column width in page
column list[2] in page
"""
TEXTS = (Path(__file__).parents[1] / "fixtures" / "small_texts.txt").read_text(encoding="utf-8")
"""Texts that begin at the margin; a line that begins with `#` names those behind it."""


def problems(text, name):
    return Document(text, name).problems


def told(text, found, hints):
    """Write findings as lines: code, place, message, label, and hints that were not shown yet."""
    for finding in found:
        place = " ".join(text[finding.start : finding.end].split())
        label = f" ^ {finding.label}" if finding.label else ""
        yield f"{finding.code} `{place}`: {finding.message}{label}"
        if finding.hint:
            yield "     ..." if finding.hint in hints else f"     {finding.hint}"
            hints.add(finding.hint)


def programs_of(scope):
    """Write the masks of a text as core programs, with what their parameters are by default."""
    for name, body in scope.bodies.items():
        defaults = ", ".join(f"{n} = {written(node)}" for n, node in body.defaults.items())
        yield f"{name}({defaults})" if defaults else name
        yield indent(show_mask(body.core), "    ")


def written(node):
    return show_number(node) if isinstance(node, get_args(nodes.Number)) else show_mask(node)


def texts_of(corpus):
    """Yield the texts of a corpus, each with its group."""
    group = ""
    for text in re.split(r"\n(?! )", corpus.strip()):
        if text.startswith("# "):
            group = text[2:]
        else:
            yield group, text


def test_every_finding_is_told_with_its_place_hint_and_fix(snapshots):
    groups, hints = {}, set()
    for group, text in texts_of(TEXTS):
        layouts = "" if group == "texts" else LAYOUTS
        document = Document(layouts + text, "<text>")
        lines = groups.setdefault(group, [])
        lines += [text, *told(document.text, document.problems, hints)]
        if not document.problems:
            lines += programs_of(document.scope)
        mended = fix_text(document.text, "<text>", problems).text.removeprefix(layouts)
        lines += [f"mended: {mended}", ""] if mended != text else [""]
    snapshots.check("findings", {group: "\n".join(lines) for group, lines in groups.items()})


OPERANDS = {
    "position": "q", "place": "k.doc.start", "tokens": "len", "distance": "q.doc.pos", "int": "3",
    "column": "k.evict", "doc": "q.doc", "doc of k": "(k - 1).doc", "text": "q.text", "any": "free",
}  # fmt: skip


def test_kinds_of_numbers_say_what_may_be_computed_and_compared(snapshots):
    """A cell holds the kind of `row op column`, and on which positions it depends."""
    document = Document(LAYOUTS, "<text>")
    texts = {}
    for op in ("+", "-", "*", "//", "%", "min", "<"):
        rows = ["".join(f"{name:13}" for name in ("", *OPERANDS)).rstrip()]
        for name, left in OPERANDS.items():
            cells = [name]
            for right in OPERANDS.values():
                checker = MaskChecker(document.scope, document.parsed.program)
                text = f"{op}({left}, {right})" if op == "min" else f"{left} {op} {right}"
                kind = checker.kind(parse_expression(text), {"free": UNKNOWN})
                depends = "".join(sorted(kind.depends))
                shown = f"{kind.segment or kind.name} {depends}".rstrip()
                cells.append("; ".join(d.code for d in checker.found) or shown)
            rows.append("".join(f"{cell:13}" for cell in cells).rstrip())
        texts[op] = "\n".join(rows)
    snapshots.check("kinds", texts)


# ---- trees, core programs, layout ----------------------------------------------------------------


def tree_lines(node, text, depth=0):
    """Write a tree as lines: the kind of each node, its plain values, the text it covers."""
    plain = [
        repr(value) for field in fields(node) if field.name != "span"
        if not is_dataclass(value := getattr(node, field.name)) and not holds_nodes(value)
    ]  # fmt: skip
    said = " ".join([type(node).__name__, *plain])
    yield f"{'  ' * depth}{said:{max(1, 34 - 2 * depth)}} {text[node.span.start : node.span.end]}"
    for child in sorted(children(node), key=lambda child: child.span.start):
        yield from tree_lines(child, text, depth + 1)


def holds_nodes(value):
    return isinstance(value, tuple) and any(map(is_dataclass, value))


def test_trees_of_statements_know_their_places(snapshots):
    texts = {}
    for text in (
        *STATEMENTS,
        "mask o = a minus (b or c) minus - q . b . start < +3 and d per e per f",
    ):
        texts[text] = "\n".join(tree_lines(parse(text).statements[0], text))
    snapshots.check("trees", texts)


def test_masks_of_the_library_are_written_out(snapshots):
    """Their core programs, columns and layouts."""
    spec = Spec.from_text("")
    texts = {}
    for name in library_names():
        definition, scope = spec.scope.find_mask(name)
        keys = keys_of_mask(definition, scope)
        lines = []
        for segment, layout in scope.layouts():
            depths = ", ".join(f"{column} {d}" for column, d in column_depths(layout).items())
            facts = [f"{segment.name.text}: {', '.join(i.text for i in segment_names(segment))}"]
            facts.append(f"columns {depths}")
            facts += ["branches"] * has_branches(layout) + ["by its length"] * reads_length(layout)
            facts += [f"parents {', '.join(parent_columns(layout))}"] * bool(parent_columns(layout))
            lines.append("; ".join(facts))
        if keys is not None:
            lines.append(f"keys {keys.statement.name.text} {keys.alignment}".rstrip())
        assert check_scope(scope) == ()
        texts[name] = "\n".join([*lines, *programs_of(scope)])
    snapshots.check("library", texts)


UNTIDY = """
mask a=causal  and(q-k<4)#near
mask   a  (  p :tokens=4k,m: mask )=m   and(q-k)<-p
  where b=every p in c,f( t )=t//2%3,g(t)=-t
mask a = not(q<k)or -q+k<- 3 and f(-1,- 2)  # a sign or a difference

mask b = q - -k<3 and(-q)*-2<=k and q.doc . start==3

@ahead ( s )@partial
mask c={a sees self causally within 3,all
 b sees a}per s minus same( c )


mask d = { # first
a sees all
# second
  }
# of what comes behind

segment s=a [n](b[m] * c[ len*2 ])*   d[ .. ]
segment t=branch x ( y[n]*)*from p
segment u=every(4)in s segment w=every 2*n
segment v = ids ( col ) as a,b
segment x=s where(kind+1)*2>3 or not(kind==1) segment y=s   or u let a=-( 2+1 )
segment z = branch a[xs] *  join(b [ n ]c[m])branch d[ "a b" ]  *from   token
 f
token   "my col" [ 2 ]="x  y" mask e=q . "my col"<3 and k in(s or y)
for"*"use sliding(w)with w   or 4k,"größe"   = "c d"
token e [ 4 ]=c column f[3]in image=c
import a,b   from"f.dcpm"
stack st=5 of a,heads{0 .. 1:b
rest:c},linear
for"g"having a,b use m (w=a)with c=d
sample x(a=3,b=[[1,-2],[ ]],c=true,d=
[
1,
2
])
check a implies b on s check(a or b)total
check   -q in first ( s )implies a
#!/usr/bin/env dcpm
#no space
#  two spaces
#
    # indented
mask e = (q # within
# brackets
< k)
mask f = causal and
# not within
full
mask g(
m: # a type
mask)=m*2<3 and q in(s)and k not in last( s , 2 )
"""


def test_untidy_texts_are_laid_out(snapshots):
    """One by one, and all of them as one text."""
    laid = [format_source(text) for text in re.split(r"\n\n+", UNTIDY)]
    assert all(format_source(text) == text for text in laid)
    assert format_source(UNTIDY) == "\n".join(laid)
    assert format_source("\n\n  # a\n\n\n# b # c  \n") == "# a\n\n# b # c\n"
    assert format_source(" \n") == ""
    snapshots.check("formatted", {"all": "\n".join(laid)})


# ---- imports -------------------------------------------------------------------------------------

FILES = {
    "data.dcpm": """segment doc = [doc_lens]*  segment half = every 128  token evict
segment quarter = every 64 in half  segment odd = every len // 2  column width in doc
stack two = near, causal  mask near(w: int = 3) = sliding(w)  mask packed = near per doc""",
    "sub/more.dcpm": """import packed, two from "../data.dcpm"
import deep from "deep.dcpm"  mask both = packed or deep  segment doc = x[n]""",
    "sub/deep.dcpm": "mask deep = q == k",
    "sub/out.dcpm": 'import a from "../../a.dcpm" mask out = a',
    "broken.dcpm": "mask one = casual\nmask two = full full\nmask three = one or gone",
    "once.dcpm": "mask one = two\n",
    "again.dcpm": 'import packed from "broken.dcpm" mask m = packed',
    "ring.dcpm": 'import b from "ring2.dcpm" mask a = b',
    "ring2.dcpm": 'import a from "ring.dcpm" mask b = a',
    "self.dcpm": 'import a from "main.dcpm" mask b = a',
}
IMPORTS = """
import doc, evict, near, packed, two from "data.dcpm" mask a = packed and near(4) and q < k.evict
import doc from "data.dcpm" import both from "sub/more.dcpm" mask a = both and same(doc)
import half, quarter, odd, width, gone, pakced from "data.dcpm" mask a = same(half) and pakced
import doc from "sub/more.dcpm" segment doc = [n]* mask a = same(x) and packed
import one from "broken.dcpm" import two from "broken.dcpm" mask a = one and two
import one from "once.dcpm" import m from "again.dcpm" mask a = one or m
import a from "ring.dcpm" mask c = a
import b from "self.dcpm" mask a = b
import out from "sub/out.dcpm" mask a = out
import a from "/data.dcpm" import b from "x.txt" import c from "c:x.dcpm" import d from "a\\b.dcpm"
import a from "missing.dcpm" import b from "" import c from "../data.dcpm" import d from ".dcpm"
import near from "data.dcpm" mask near = full
import near, near from "data.dcpm" mask causal = near
import packed from "sub/../data.dcpm" import packed from "./data.dcpm" mask b = packed
import two from "data.dcpm" stack s = two for "x" use two check two total
"""


def test_what_imports_bring_and_why_they_do_not(snapshots):
    texts, hints = {}, set()
    for text in IMPORTS.strip().splitlines():
        parsed = parse_all(text, "main.dcpm")
        scope, found = build_scope(parsed.program, FILES)
        found += check_scope(scope, parsed.lost_names)
        lines = [*told(text, found, hints)]
        for kind in ("masks", "stacks", "segments", "tokens"):
            names = getattr(scope.imported, kind)
            lines += [f"{kind}: {', '.join(names)}"] * bool(names)
        lines.append(f"read: {', '.join(scope.imported.files)}; {len(scope.imported.scopes)} used")
        if not found:
            lines += programs_of(scope)
        texts[text] = "\n".join(lines)
    snapshots.check("imports", texts)
