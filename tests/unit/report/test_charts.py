from itertools import pairwise
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from rollmill.report.charts import (
    Bar,
    Curve,
    Dot,
    Point,
    curve_chart,
    interval_strip,
    outcome_chart,
    scatter_chart,
    solve_rate_chart,
)
from rollmill.report.markup import Markup
from rollmill.report.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH


def drawn(chart: Markup) -> Element:
    return ElementTree.fromstring(chart)


def styled(chart: Element, name: str, style: str) -> list[Element]:
    """Elements of a kind with all classes of `style`."""
    wanted = set(style.split())
    return [one for one in chart.iter(name) if wanted <= set((one.get("class") or "").split())]


def words(elements: list[Element]) -> list[str | None]:
    return [element.findtext("title") for element in elements]


def size(element: Element, name: str) -> float:
    return float(element.attrib[name])


def assert_inside(chart: Element) -> None:
    for mark in [*chart.iter("rect"), *chart.iter("circle"), *chart.iter("line")]:
        for name, most in (("x", WIDTH), ("cx", WIDTH), ("x1", WIDTH), ("x2", WIDTH), ("y", HEIGHT), ("cy", HEIGHT)):
            assert 0 <= float(mark.get(name, 0)) <= most
        assert size(mark, "height") >= 0 if mark.tag == "rect" else True


def solve_rates(none: int, between: list[int], every: int) -> Element:
    bars = [Bar(amount, f"bin {at}") for at, amount in enumerate(between)]
    return drawn(solve_rate_chart(Bar(none, "never"), bars, Bar(every, "always"), label="solve rates"))


def test_bars_are_as_high_as_what_they_count() -> None:
    chart = solve_rates(2, [0, 4, 0, 0, 0, 0, 0, 0, 0, 1], 3)

    bars = [*styled(chart, "rect", "none"), *styled(chart, "rect", "some"), *styled(chart, "rect", "all")]
    heights = [size(bar, "height") for bar in bars]
    assert words(bars) == ["never", "bin 1", "bin 9", "always"]
    assert heights == pytest.approx([(BOTTOM - TOP) * share for share in (0.5, 1.0, 0.25, 0.75)], abs=0.02)
    assert [size(bar, "x") for bar in bars] == sorted(size(bar, "x") for bar in bars)
    assert all(size(bar, "y") + size(bar, "height") == pytest.approx(BOTTOM, abs=0.02) for bar in bars)
    assert_inside(chart)


def test_a_histogram_of_nothing_is_axes_alone() -> None:
    chart = solve_rates(0, [0] * 10, 0)

    assert list(chart.iter("rect")) == []
    assert {"none", "all", "50 %", "0", "1"} - {text.text for text in chart.iter("text")} == {"50 %"}


def test_a_chart_says_what_it_shows_to_those_who_do_not_see_it() -> None:
    chart = solve_rates(1, [0] * 10, 0)

    assert chart.get("role") == "img"
    assert chart.get("aria-label") == "solve rates"
    assert {"tasks", "rollouts correct"} <= {text.text for text in chart.iter("text")}


def points(*values: tuple[float, float, float | None, float | None]) -> list[Point]:
    return [Point(x, y, low, high, f"k={x:g}") for x, y, low, high in values]


def curves(*found: Curve, unit: bool = True) -> Element:
    return drawn(curve_chart(found, x_label="k", y_label="p", label="curve", unit=unit))


def test_a_curve_has_its_points_its_line_and_its_band() -> None:
    chart = curves(Curve("pass@k", "one", points((1, 0.0, 0.0, 0.2), (2, 0.5, 0.25, 0.75), (4, 1.0, 0.8, 1.0))))

    dots = styled(chart, "circle", "dot")
    assert words(dots) == ["k=1", "k=2", "k=4"]
    assert [size(dot, "cy") for dot in dots] == [BOTTOM, (TOP + BOTTOM) / 2, TOP]
    assert size(dots[0], "cx") == LEFT + 8
    assert size(dots[2], "cx") == RIGHT - 8
    (band,) = styled(chart, "polygon", "band")
    assert len(band.attrib["points"].split()) == 6
    assert len(styled(chart, "polyline", "line")) == 1
    assert_inside(chart)


def test_a_curve_of_one_point_is_a_dot_with_a_whisker() -> None:
    chart = curves(Curve("pass@k", "one", points((1, 0.5, 0.25, 0.75))))

    assert styled(chart, "polygon", "band") == []
    assert styled(chart, "polyline", "line") == []
    (whisker,) = styled(chart, "line", "whisker")
    assert size(whisker, "y1") > size(whisker, "y2")
    assert len(styled(chart, "circle", "dot")) == 1


def test_a_curve_without_intervals_has_no_band() -> None:
    chart = curves(Curve("pass@k", "one", points((1, 0.5, None, None), (2, 0.6, None, None))))

    assert styled(chart, "polygon", "band") == styled(chart, "line", "whisker") == []
    assert len(styled(chart, "polyline", "line")) == 1


def test_points_over_fewer_tasks_are_hollow() -> None:
    chart = curves(Curve("pass@k", "one", [Point(1, 0.5, None, None, ""), Point(2, 0.6, None, None, "", partial=True)]))

    assert len(styled(chart, "circle", "dot")) == 2
    assert len(styled(chart, "circle", "dot partial")) == 1


def test_many_k_are_spread_by_powers_of_two() -> None:
    chart = curves(Curve("pass@k", "one", points(*((float(2**at), 0.5, None, None) for at in range(7)))))

    xs = [size(dot, "cx") for dot in styled(chart, "circle", "dot")]
    assert [b - a for a, b in pairwise(xs)] == pytest.approx([(RIGHT - LEFT - 16) / 6] * 6, abs=0.02)


def test_scores_of_any_size_get_their_own_axis() -> None:
    chart = curves(Curve("best@k", "three", points((1, -12.0, -20.0, -4.0), (2, 30.0, 25.0, 41.0))), unit=False)

    assert {"-20", "0", "40"} <= {text.text for text in chart.iter("text")}
    assert_inside(chart)


def test_outcomes_are_drawn_up_and_down_with_their_means() -> None:
    right, wrong = [10.0, 11.0, 12.0, 13.0], [50.0, 90.0]
    chart = drawn(outcome_chart(right, wrong, means=(11.5, 70.0), x_label="tokens", label="lengths"))

    middle = (TOP + BOTTOM) / 2
    assert all(size(bar, "y") < middle for bar in styled(chart, "rect", "right"))
    assert all(size(bar, "y") == middle for bar in styled(chart, "rect", "wrong"))
    assert sum(int(str(told).split()[-2]) for told in words(styled(chart, "rect", "right"))) == 4
    assert words(styled(chart, "line", "mean")) == ["mean of right: 11.5", "mean of wrong: 70"]
    assert_inside(chart)


@pytest.mark.parametrize(("right", "wrong"), [([5.0], []), ([], [5.0]), ([5.0, 5.0], [5.0])])
def test_one_sided_and_equal_outcomes_can_be_drawn(right: list[float], wrong: list[float]) -> None:
    chart = drawn(outcome_chart(right, wrong, means=(None, None), x_label="tokens", label="lengths"))

    assert len(styled(chart, "rect", "right")) == bool(right)
    assert len(styled(chart, "rect", "wrong")) == bool(wrong)
    assert styled(chart, "line", "mean") == []


def test_every_rollout_of_a_scatter_is_a_dot_that_tells_which() -> None:
    dots = [Dot(100, 0.25, "0:1", "wrong"), Dot(900, 1.0, "2:3", "right")]
    chart = drawn(scatter_chart(dots, means=(900, 100), x_label="tokens", y_label="reward", label="scatter"))

    circles = styled(chart, "circle", "dot")
    assert words(circles) == ["0:1", "2:3"]
    assert size(circles[0], "cx") < size(circles[1], "cx")
    assert size(circles[0], "cy") > size(circles[1], "cy")
    assert_inside(chart)


def test_huge_values_can_be_drawn() -> None:
    dots = [Dot(1, -1e308, "low", "wrong"), Dot(1, 1e308, "high", "right")]

    assert_inside(drawn(scatter_chart(dots, means=(None, None), x_label="x", y_label="y", label="huge")))


def test_a_strip_shows_an_interval_within_its_span() -> None:
    strip = drawn(interval_strip(0.5, 0.25, 0.75, span=(0.0, 1.0), words="0.5 <of> 1"))

    (whisker,) = styled(strip, "line", "whisker")
    assert (size(whisker, "x1"), size(whisker, "x2")) == (32.0, 88.0)
    assert strip.get("aria-label") == strip.findtext("title") == "0.5 <of> 1"


def test_labels_that_would_touch_are_left_out() -> None:
    chart = curves(Curve("pass@k", "one", points(*((float(k), 0.5, None, None) for k in range(1, 17)))))
    labels = [text for text in chart.iter("text") if size(text, "y") == BOTTOM + 15]

    assert 4 <= len(labels) <= 16
    assert len(styled(chart, "circle", "dot")) == 16
