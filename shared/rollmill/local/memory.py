import gc
from typing import Final

YOUNG: Final = 20_000
"""Objects made and not dropped until the youngest generation is looked through; Python's own 700 is a few calls."""


def settle_memory() -> None:
    """Have the garbage collector never look again at what was imported so far, and seldom at what calls make.

    A call in flight is some hundred objects that live until it is answered. With hundreds of them, looking through all
    of them every few calls would cost more than the calls; nothing of ours is freed by it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 50)
    gc.enable()
