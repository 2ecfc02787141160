import sys

from hypothesis import given
from hypothesis import strategies as st

from rollmill.artifacts.compact import CompactInts, DigestIndex

keys = st.one_of(st.integers(0, 200), st.integers(60_000, 70_000), st.integers(0, 2**70))
values = st.one_of(st.integers(0, 3), st.integers(0, 2**80))


@given(st.lists(st.tuples(keys, values)), st.lists(keys))
def test_compact_ints_hold_what_a_dict_with_zeros_would(puts: list[tuple[int, int]], others: list[int]) -> None:
    compact, plain = CompactInts(), dict[int, int]()

    for key, value in puts:
        compact[key] = value
        plain[key] = value

    assert {key: compact[key] for key in [*plain, *others]} == {key: plain.get(key, 0) for key in [*plain, *others]}
    assert dict(compact.items()) == {key: value for key, value in plain.items() if value}


def test_an_integer_whose_key_comes_in_order_takes_8_bytes() -> None:
    compact = CompactInts()
    for key in range(100_000):
        compact[key ^ 1] = 1  # neighbours change places, as rollouts do that overtake each other

    assert sys.getsizeof(compact._near) < 900_000
    assert not compact._far


@given(st.lists(st.integers(0, 2**64 - 1), unique=True), st.lists(st.integers(0, 2**64 - 1)))
def test_a_digest_index_holds_what_a_dict_would(digests: list[int], others: list[int]) -> None:
    index = DigestIndex()
    for number, digest in enumerate(digests):
        index.add(digest, number)

    plain = {digest: number for number, digest in enumerate(digests)}
    assert len(index) == len(plain)
    assert [index.get(digest) for digest in [*digests, *others]] == [plain.get(d) for d in [*digests, *others]]


def test_a_digest_index_grows_and_tells_digests_apart_that_share_a_slot() -> None:
    index = DigestIndex()
    digests = [number << 32 | number % 7 for number in range(3000)]  # seven slots for all of them

    for number, digest in enumerate(digests):
        index.add(digest, number)

    assert [index.get(digest) for digest in digests] == list(range(3000))
    assert index.get(3001 << 32) is None
