"""Some scorers of reasoning-gym evaluate the answer as Python: only what can do no harm may reach those.

An answer that is kept from its scorer scores 0. What such answers may hold is what their families ask for: lists of
numbers and texts, or formulas of numbers, variables of one letter and the functions of school mathematics.
"""

import ast
import re

_LISTS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
_FORMULAS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
_PARTS = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Name, ast.Load, ast.UnaryOp, ast.USub)
_FORMULA = re.compile(r"[\w\s.+\-*/^(),=]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln"}
    | {"sqrt", "Abs", "abs", "pi", "Rational"}
)
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z_]")


def is_harmless(family: str, answer: str) -> bool:
    """Say whether an answer may be given to the scorer of its family."""
    if family in _LISTS:
        return _is_literal(answer)
    return family not in _FORMULAS or _is_formula(answer)


def _is_literal(answer: str) -> bool:
    try:
        tree = ast.parse(answer.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return True  # then evaluating it is an error, too
    except (MemoryError, RecursionError):
        return False
    return all(isinstance(node, _PARTS) for node in ast.walk(tree))


def _is_formula(answer: str) -> bool:
    names = _NAME.findall(answer)
    plain = _FORMULA.fullmatch(answer) and not _ATTRIBUTE.search(answer)
    return bool(plain) and all((len(name) == 1 and name != "_") or name in _FUNCTIONS for name in names)
