import re

_SPELLED_OUT = (("@", "_at_"), ("^", "_hat_"))
_FORBIDDEN = re.compile(r"[^\w./-]", re.ASCII)


def portable_name(name: str) -> str:
    """Return a name that MLflow and TensorBoard accept: `pass_at_4` for `pass@4`, `pass_hat_4` for `pass^4`.

    Both allow letters, digits and `_ . / -`; everything else becomes `_`.
    """
    for sign, word in _SPELLED_OUT:
        name = name.replace(sign, word)
    return _FORBIDDEN.sub("_", name)
