"""Covering samples: nothing is left out that a pair of values could show."""

from __future__ import annotations

from itertools import combinations, product

from tests.pairwise import covering, pairwise

AXES = {"a": range(4), "b": "vwxyz", "c": [(1, 8), (1, 9), (4, 13), (3, 2), (2, 4)], "d": [True]}


def test_every_pair_of_values_occurs_and_few_rows_do() -> None:
    rows = covering(AXES)
    assert len(set(rows)) == len(rows)
    for (i, first), (j, second) in combinations(enumerate(AXES.values()), 2):
        assert {(row[i], row[j]) for row in rows} == set(product(first, second))
    # 25 rows are the least that have all pairs of b and c; the product has 100.
    assert 25 <= len(rows) <= 35


def test_two_axes_have_no_smaller_sample_than_the_product() -> None:
    assert sorted(covering({"a": range(3), "b": range(4)})) == list(product(range(3), range(4)))


def test_a_trait_meets_everything_and_no_value_is_lost() -> None:
    rows = covering({"n": range(9), "b": "xyz"}, {"n": lambda n: (n % 2, n > 4)})
    assert {n for n, _ in rows} == set(range(9))
    assert {(n % 2, b) for n, b in rows} == set(product((0, 1), "xyz"))
    assert {(n > 4, b) for n, b in rows} == set(product((False, True), "xyz"))
    assert len(rows) == 9
    assert [sum(b == letter for _, b in rows) for letter in "xyz"] == [3, 3, 3]


def test_the_same_axes_give_the_same_rows() -> None:
    assert covering(AXES) == covering(dict(AXES))


def test_an_axis_may_be_of_several_parameters() -> None:
    names, cases = pairwise({"kernel": [1, 3], "size, steps": [(1, 8), (4, 13)]}).args
    assert names == ["kernel", "size", "steps"]
    assert sorted(cases) == [(1, 1, 8), (1, 4, 13), (3, 1, 8), (3, 4, 13)]
