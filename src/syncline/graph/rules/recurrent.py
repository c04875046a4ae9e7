"""Rules of recurrent networks.

The batch is free. Hidden units can be split when shards exchange their part of the state at every step;
the weights of the gates are (gate, unit), so that each shard has its units of every gate.
"""

from __future__ import annotations

from syncline.graph.notation import Contraction, ExchangeNote, NotationError, Rule
from syncline.graph.rules.call import Call

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def recurrent(call: Call) -> Rule:
    """lstm, gru, rnn_tanh, rnn_relu with padded (not packed) sequences."""
    arguments = call.arguments
    order = ["b", "t!"] if arguments["batch_first"] else ["t!", "b"]
    ways = 2 if arguments["bidirectional"] else 1
    states = 2 if call.name == "lstm" else 1
    weights, contractions = _weights(call, ways, states)
    state = "l! b h~"
    units = "(w! h~)" if ways == 2 else "h~"
    inputs = [" ".join([*order, "i0!"]), *[state] * states, *weights]
    outputs = [" ".join([*order, units]), *[state] * states]
    exchanged = f"{arguments['num_layers'] * ways} t b h"
    rounds = f"{arguments['num_layers'] * ways} t"
    return Rule(
        f"{', '.join(inputs)} -> {', '.join(outputs)}",
        contractions=tuple(contractions),
        exchanges=(ExchangeNote("h", "all_gather", exchanged, exchanged, rounds, rounds),),
        sizes=(("q", _GATES[call.name]), ("w", ways)),
        random=arguments["dropout"] > 0 and arguments["train"] and arguments["num_layers"] > 1,
    )


def lstm_cell(call: Call) -> Rule:
    """One step; the kernel wants all units of the state, so they are whole."""
    return Rule(
        "b i!, b k!, b h!, (q! h) i, (q h) k, (q h), (q h) -> b h, b h",
        contractions=(Contraction(((0,), (3,)), "b q h i"), Contraction(((1,), (4,)), "b q h k")),
        sizes=(("q", _GATES["lstm"]),),
    )


def gru_cell(call: Call) -> Rule:
    """One step; the kernel wants all units of the state, so they are whole."""
    return Rule(
        "b i!, b k!, (q! h!) i, (q h) k, (q h), (q h) -> b h",
        contractions=(Contraction(((0,), (2,)), "b q h i"), Contraction(((1,), (3,)), "b q h k")),
        sizes=(("q", _GATES["gru"]),),
    )


def _weights(call: Call, ways: int, states: int) -> tuple[list[str], list[Contraction]]:
    """The weights of each layer and direction: input, hidden, and two biases if there are any.

    A layer above the first takes the units of all directions.
    """
    arguments = call.arguments
    shapes = call.shapes("params")
    texts: list[str] = []
    contractions: list[Contraction] = []
    for index in range(arguments["num_layers"] * ways):
        source = "i0" if index < ways else "m"
        first = 1 + states + len(texts)
        hidden = shapes[len(texts) + 1]
        if hidden[0] != _GATES[call.name] * hidden[1]:
            raise NotationError(f"{call.name} with projected states")
        feeding = (0,) if index < ways else tuple(range(first))
        contractions.append(Contraction((feeding, (first,)), f"t b q h {source}"))
        contractions.append(Contraction((tuple(range(first + 2)), (first + 1,)), "t b q h k"))
        texts += [f"(q! h~) {source}!", "(q h) k!"]
        if arguments["has_biases"]:
            texts += ["(q h)", "(q h)"]
    return texts, contractions
