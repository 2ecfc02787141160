from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.artifacts.keys import KeySet
from rollmill.contracts.rows import RowKey

indices = st.one_of(st.integers(0, 5), st.integers(1020, 1030), st.integers(0, 2**70))
keys = st.builds(RowKey, indices, indices)


@given(st.lists(keys, max_size=60), st.lists(keys, max_size=20))
@settings(max_examples=80)
def test_a_key_set_is_a_set(added: list[RowKey], asked: list[RowKey]) -> None:
    small, plain = KeySet(), set[RowKey]()
    for key in added:
        assert small.add(key) == (key not in plain)
        plain.add(key)

    assert len(small) == len(plain)
    assert sorted(small) == sorted(plain)
    assert [key in small for key in asked + added] == [key in plain for key in asked + added]
