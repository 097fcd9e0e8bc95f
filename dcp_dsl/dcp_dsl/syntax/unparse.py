"""Write expressions as text, with as few brackets as the grammar allows."""

from dcp_dsl.syntax import ast

# How tightly each kind of node binds; an operand that binds less needs brackets.
_OR, _AND, _NOT, _PER, _COMPARE, _SUM, _PRODUCT, _SIGN, _POSTFIX = range(9)


def unparse(value: ast.Expr) -> str:
    """Return a text that parses to an equal tree.

    >>> from dcp_dsl.syntax.parser import parse_expression
    >>> unparse(parse_expression("causal  and (k<64 or q-k < 4096)"))
    'causal and (k < 64 or q - k < 4k)'
    """
    return _text(value)[0]


def format_number(value: int) -> str:
    """Write a number as people do: ``4k`` for 4096.

    >>> format_number(4096), format_number(1000), format_number(-3)
    ('4k', '1000', '-3')
    """
    for suffix, factor in (("M", 2**20), ("k", 2**10)):
        if value and value % factor == 0:
            return f"{value // factor}{suffix}"
    return str(value)


def _text(value: ast.Expr) -> tuple[str, int]:
    """Return the text of a node and how tightly it binds."""
    match value:
        case ast.Number(number):
            return format_number(number), _POSTFIX
        case ast.Bool(flag):
            return str(flag).lower(), _POSTFIX
        case ast.Name(text):
            return text, _POSTFIX
        case ast.Attribute(inner, name):
            return f"{_at_least(inner, _POSTFIX)}.{name.text}", _POSTFIX
        case ast.Call(name, arguments):
            return f"{name.text}({', '.join(map(_argument, arguments))})", _POSTFIX
        case ast.Sign(op, inner):
            return f"{op}{_at_least(inner, _POSTFIX)}", _SIGN
        case ast.Rules(rules):
            return "{ " + "  ".join(map(_rule, rules)) + " }", _POSTFIX
        case ast.Binary(op, left, right):
            level = _SUM if op in ("+", "-") else _PRODUCT
            return f"{_at_least(left, level)} {op} {_at_least(right, level + 1)}", level
    return _logic(value)


def _logic(value: ast.Expr) -> tuple[str, int]:
    match value:
        case ast.Compare(operands, ops):
            parts = [_at_least(operands[0], _SUM)]
            for op, operand in zip(ops, operands[1:], strict=True):
                parts += [op, _at_least(operand, _SUM)]
            return " ".join(parts), _COMPARE
        case ast.In(item, container, negated):
            word = "not in" if negated else "in"
            return f"{_at_least(item, _SUM)} {word} {_at_least(container, _POSTFIX)}", _COMPARE
        case ast.Per(inner, segment):
            return f"{_at_least(inner, _PER)} per {segment.text}", _PER
        case ast.Not(inner):
            return f"not {_at_least(inner, _NOT)}", _NOT
        case ast.And(items):
            # A nested `and` keeps its brackets; a leading `minus` needs none.
            first = items[0]
            head = _text(first)[0] if isinstance(first, ast.Minus) else _at_least(first, _NOT)
            rest = [_at_least(item, _NOT) for item in items[1:]]
            return " and ".join([head, *rest]), _AND
        case ast.Minus(left, right):
            head = (
                _text(left)[0] if isinstance(left, ast.And | ast.Minus) else _at_least(left, _NOT)
            )
            return f"{head} minus {_at_least(right, _NOT)}", _AND
        case ast.Or(items):
            return " or ".join(_at_least(item, _AND) for item in items), _OR
    raise AssertionError(f"no text for {type(value).__name__}")


def _at_least(value: ast.Expr, level: int) -> str:
    text, own = _text(value)
    return text if own >= level else f"({text})"


def _argument(argument: ast.Argument) -> str:
    text = unparse(argument.value)
    return text if argument.name is None else f"{argument.name.text} = {text}"


def _rule(rule: ast.Rule) -> str:
    return f"{rule.subject.text} sees {', '.join(map(_target, rule.targets))}"


def _target(target: ast.Target) -> str:
    text = target.name.text
    if target.is_causal:
        text += " causally"
    if target.within is not None:
        text += f" within {_at_least(target.within, _SUM)}"
    return text
