"""Names beside points: none covers another, and none is left out without need."""

from syncline.benchmark.report.names import place_names


def test_points_far_apart_have_their_names_above():
    assert place_names([(1.0, 10.0), (4.0, 40.0)], ["single", "sharded"]) == ["top center"] * 2
    assert place_names([], []) == []
    assert place_names([(0.0, 0.0)], ["single"]) == ["top center"]


def test_neighbours_take_other_sides():
    assert place_names([(2.0, 20.0), (2.05, 20.5), (4.0, 40.0)], ["data", "zero1", "x"]) == [
        "bottom center",
        "top center",
        "top center",
    ]


def test_a_name_that_would_cover_others_is_left_out():
    crowd = [(2.0, 20.0)] * 12
    sides = place_names([*crowd, (8.0, 80.0)], ["pipeline:schedule=zero-bubble"] * 13)
    assert sides[0] is not None
    assert None in sides
    assert sides[-1] == "top center"
    named = [side for side in sides[:-1] if side is not None]
    assert len(set(named)) == len(named)
