from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import ModelError, StrategyError
from syncline.options import describe_options, parse_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    group: int = 2
    rate: float = 0.5
    reshard_after_forward: bool = True
    label: str = "plain"
    schedule: Literal["gpipe", "1f1b"] = "gpipe"
    depth: Literal[18, 50] = 18
    limit: int | None = None
    chunks: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.group < 1:
            raise ValueError(f"group is {self.group}, it must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Required:
    path: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    pass


def parse(text: str, base: Knobs | None = None) -> Knobs:
    return parse_options(Knobs, text, what="strategy 'demo'", error=StrategyError, base=base)


def message(text: str) -> str:
    with pytest.raises(StrategyError) as caught:
        parse(text)
    return str(caught.value)


def test_empty_text_gives_the_defaults():
    assert parse("") == parse("  ") == Knobs()


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("group=8", "group", 8),
        ("rate=1e-3", "rate", 1e-3),
        ("rate=3", "rate", 3.0),
        ("label=a b", "label", "a b"),
        ("label=a=b", "label", "a=b"),
        ("schedule=1f1b", "schedule", "1f1b"),
        ("depth=50", "depth", 50),
        ("limit=7", "limit", 7),
        ("limit=none", "limit", None),
        ("chunks=4", "chunks", 4),
        ("chunks=auto", "chunks", "auto"),
    ],
)
def test_values_get_the_type_of_their_field(text: str, field: str, value: object):
    found = getattr(parse(text), field)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("key", ["reshard-after-forward", "reshard_after_forward"])
@pytest.mark.parametrize(
    ("word", "value"),
    [("true", True), ("Yes", True), ("on", True), ("false", False), ("no", False), ("OFF", False)],
)
def test_booleans_and_dashes(key: str, word: str, value: bool):
    assert parse(f"{key}={word}").reshard_after_forward is value


def test_several_options_over_a_base():
    base = Knobs(label="base", group=4)
    assert parse("rate=2, schedule=1f1b", base) == Knobs(label="base", group=4, rate=2.0, schedule="1f1b")


def test_unknown_option_names_the_nearest_and_lists_all_with_defaults():
    text = message("reshard-after-forwards=no")
    assert "'reshard-after-forwards' of strategy 'demo'" in text
    assert "Did you mean 'reshard-after-forward'?" in text
    assert "reshard-after-forward=true (true or false)" in text
    assert "limit=none (a whole number or none)" in text
    assert "chunks=auto (a whole number or auto)" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("group=two", "'group' of strategy 'demo' is 'two', but it takes a whole number"),
        ("group=1.5", "takes a whole number"),
        ("rate=nan", "takes a number"),
        ("reshard-after-forward=maybe", "is 'maybe', but it takes true or false"),
        ("schedule=zero", "takes gpipe or 1f1b"),
        ("depth=34", "takes 18 or 50"),
        ("chunks=many", "takes a whole number or auto"),
        ("limit=1e3", "takes a whole number or none"),
        ("group", "'group' in the options 'group' of strategy 'demo' is not of the form key=value"),
        ("group=", "not of the form key=value"),
        ("group=2,,rate=1", "not of the form key=value"),
        ("reshard-after-forward=no,reshard_after_forward=no", "is given twice"),
        ("group=0", "The options of strategy 'demo' cannot work together: group is 0"),
    ],
)
def test_mistakes_are_explained(text: str, expected: str):
    assert expected in message(text)


def test_defaults_in_messages_come_from_the_base():
    assert "group=16 (a whole number)" in describe_options(Knobs, Knobs(group=16))


def test_required_options():
    found = parse_options(Required, "path=x", what="model 'm'", error=ModelError)
    assert found == Required(path="x")
    with pytest.raises(ModelError, match="Model 'm' needs the option 'path'") as caught:
        parse_options(Required, "", what="model 'm'", error=ModelError)
    assert "path (required, text)" in str(caught.value)


def test_no_options_at_all():
    with pytest.raises(StrategyError, match="strategy 'single' takes no options"):
        parse_options(Nothing, "a=1", what="strategy 'single'", error=StrategyError)


def test_a_field_of_a_type_that_options_cannot_have_is_a_bug():
    @dataclass
    class Wrong:
        pairs: tuple[int, ...] = ()

    with pytest.raises(TypeError, match="tuple"):
        parse_options(Wrong, "pairs=1", what="model 'm'", error=ModelError)


@given(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans())
def test_what_is_written_is_read_back(limit: int, rate: float, reshard: bool):
    found = parse(f"limit={limit},rate={rate!r},reshard-after-forward={str(reshard).lower()}")
    assert (found.limit, found.rate, found.reshard_after_forward) == (limit, rate, reshard)
