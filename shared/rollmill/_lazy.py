import importlib
from collections.abc import Callable, Mapping


def lazy_exports(package: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """Make a module's `__getattr__` that imports each public name from its module on first use.

    Args:
        package: `__name__` of the package.
        names: public name -> module that defines it.
    """

    def load(name: str) -> object:
        module = names.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(module), name)
        setattr(importlib.import_module(package), name, value)
        return value

    return load
