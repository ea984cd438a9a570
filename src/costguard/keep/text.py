"""Reads rules from the text that a user types on a command line, which is what `Rule.label` writes."""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Final

from costguard.errors import config_error
from costguard.keep.rules import (
    AnyOf,
    Rule,
    before_anomaly,
    best,
    by_model_checkpoint,
    every,
    last,
    pinned,
    stage_end,
    thin,
)

_RULES: Final[Mapping[str, type[Rule]]] = {
    "last": last,
    "best": best,
    "every": every,
    "thin": thin,
    "stage_end": stage_end,
    "before_anomaly": before_anomaly,
    "pinned": pinned,
    "by_model_checkpoint": by_model_checkpoint,
}
_EXAMPLE: Final = "last(3) | best('val_loss', n=2)"


def parse(text: str) -> Rule:
    """Read rules from text; nothing in it is run.

    Args:
        text: Rules of `costguard.keep` with literal arguments, joined by `|`.

    Returns:
        The rule, or `any_of` several.

    Raises:
        ConfigError: If it is something else, or a rule does not take what it is given.

    Example:
        >>> parse("last(3) | every(steps=10_000)").label
        'last(3) | every(steps=10000)'
    """
    try:
        # In brackets it may go over several lines.
        node: ast.expr = ast.parse(f"({text}\n)" if text.strip() else "", mode="eval").body
        rules: list[Rule] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            rules[:0] = _rules(node.right)
            node = node.left
        rules[:0] = _rules(node)
    except (SyntaxError, RecursionError, MemoryError) as error:
        said = error.msg if isinstance(error, SyntaxError) else "nested too deep"
        raise config_error(f"keep {text!r}: cannot be read ({said}); expected rules such as {_EXAMPLE}.") from None
    except _TextError as error:
        raise config_error(f"keep {text!r}: {error}") from None
    return rules[0] if len(rules) == 1 else AnyOf(rules)


class _TextError(Exception):
    """What is wrong with a part of the text, and the remedy."""


def _rules(node: ast.expr) -> list[Rule]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_rules(node.left), *_rules(node.right)]
    if isinstance(node, ast.Name):
        _kind(node.id)
        raise _TextError(f"{node.id} is without parentheses; write {node.id}(...), such as {_EXAMPLE}.")
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise _TextError(f"{ast.unparse(node)} is no rule; expected rules joined by |, such as {_EXAMPLE}.")
    name, kind = node.func.id, _kind(node.func.id)
    given = [_literal(name, each) for each in node.args]
    named: dict[str, Any] = {}
    for each in node.keywords:
        option = _option(name, kind, each)
        if option in named:
            raise _TextError(f"{ast.unparse(node)}: {option} is given twice.")
        named[option] = _literal(name, each.value)
    try:
        inspect.signature(kind).bind(*given, **named)
    except TypeError as error:
        raise _TextError(f"{ast.unparse(node)}: {error}; {name} takes {', '.join(_options(kind)) or 'none'}.") from None
    return [kind(*given, **named)]


def _kind(name: str) -> type[Rule]:
    if name not in _RULES:
        raise _TextError(f"there is no rule {name!r}{_nearest(name, _RULES)}; the rules are {', '.join(_RULES)}.")
    return _RULES[name]


def _option(name: str, kind: type[Rule], keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise _TextError(f"{name}(**...): expected each argument by its name.")
    options = _options(kind)
    if keyword.arg not in options:
        near = _nearest(keyword.arg, options)
        raise _TextError(f"{name} has no argument {keyword.arg!r}{near}; it takes {', '.join(options) or 'none'}.")
    return keyword.arg


def _options(kind: type[Rule]) -> list[str]:
    return list(inspect.signature(kind).parameters)


def _literal(name: str, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise _TextError(
            f"{name}({ast.unparse(node)}): expected a number or a quoted text, such as {_EXAMPLE}."
        ) from None


def _nearest(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(known), 1)
    return f", did you mean {found[0]!r}?" if found else ""
