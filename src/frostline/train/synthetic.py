"""Synthesised chats that use the special tokens: the thinking channel, tool declarations, calls and responses.

Own templates. Knows nothing of token ids; the markers are written as text, which the tokenizer turns into its specials.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from frostline.train.documents import Document, Turn

Value = str | int | dict[str, "Value"] | list["Value"]


def _listed(text: str) -> list[str]:
    return text.split("|")


CITIES = _listed(
    "Paris|London|Rome|Berlin|Madrid|Tokyo|Oslo|Cairo|Lima|Boston|Dublin|Vienna|Athens|Prague|Delhi|Sydney"
)
PEOPLE = _listed("Anna|Ben|Clara|Daniel|Ella|Finn|Grace|Henry|Ivy|Jack|Kate|Leo|Mia|Noah|Olivia|Peter")
SKIES = _listed("sunny|cloudy|rainy|windy|snowy|foggy")
SONGS = _listed("Blue River|Morning Light|Old Road|Silver Moon|Summer Rain|Quiet Night")
ITEMS = _listed("milk|bread|apples|rice|tea|eggs|soap|cheese")
TEXTS = _listed("I will be late|See you soon|Happy birthday|Call me later|Dinner is ready|Good luck")
SYSTEMS = ("You are a helpful assistant.", "Answer briefly.", "You can use tools.", "")


def tool_value(value: Value) -> str:
    """A value in the tool syntax: strings between `<|"|>` marks, mappings and lists nested."""
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{tool_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(tool_value(item) for item in value) + "]"
    return str(value)


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool: what it is called with, how users ask for it, what it returns and what the model then says.

    In `ask` and `reply`, names in braces are parameters or fields of the result.
    """

    name: str
    description: str
    parameters: dict[str, str]
    ask: tuple[str, ...]
    result: tuple[str, ...]
    reply: str

    def declaration(self) -> str:
        """As the chat template writes it."""
        properties: dict[str, Value] = {name: {"type": kind} for name, kind in self.parameters.items()}
        schema: Value = {"type": "object", "properties": properties}
        written = tool_value({"description": self.description, "parameters": schema})
        return f"<|tool>declaration:{self.name}{written}<tool|>"


TOOLS = (
    Tool(
        name="get_weather",
        description="Get the weather of a city",
        parameters={"city": "string"},
        result=("sky", "degrees"),
        ask=("What is the weather in {city}?", "How is the weather in {city} today?", "Is it cold in {city}?"),
        reply="It is {sky} in {city}, with {degrees} degrees.",
    ),
    Tool(
        name="get_time",
        description="Get the local time of a city",
        parameters={"city": "string"},
        result=("time",),
        ask=("What time is it in {city}?", "Tell me the time in {city}."),
        reply="It is {time} in {city}.",
    ),
    Tool(
        name="add",
        description="Add two numbers",
        parameters={"a": "integer", "b": "integer"},
        result=("sum",),
        ask=("What is {a} plus {b}?", "Add {a} and {b}.", "Use the tool to add {a} and {b}."),
        reply="The sum of {a} and {b} is {sum}.",
    ),
    Tool(
        name="set_timer",
        description="Start a timer",
        parameters={"minutes": "integer"},
        result=("status",),
        ask=("Set a timer for {minutes} minutes.", "Wake me up in {minutes} minutes."),
        reply="The timer is set for {minutes} minutes.",
    ),
    Tool(
        name="play_song",
        description="Play a song",
        parameters={"title": "string"},
        result=("status",),
        ask=("Play {title}.", "I want to hear {title}.", "Please play the song {title}."),
        reply="Now playing {title}.",
    ),
    Tool(
        name="send_message",
        description="Send a message",
        parameters={"to": "string", "text": "string"},
        result=("status",),
        ask=("Tell {to}: {text}.", "Send a message to {to}: {text}."),
        reply="I sent your message to {to}.",
    ),
    Tool(
        name="add_to_list",
        description="Add to the shopping list",
        parameters={"item": "string", "count": "integer"},
        result=("status",),
        ask=("Put {count} {item} on my list.", "Add {item} to the shopping list, {count} please."),
        reply="I added {item} to your list.",
    ),
)


def _values(rng: random.Random) -> dict[str, str | int]:
    a, b = rng.randint(1, 99), rng.randint(1, 99)
    return {
        "city": rng.choice(CITIES),
        "sky": rng.choice(SKIES),
        "degrees": rng.randint(-5, 35),
        "time": f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}",
        "a": a,
        "b": b,
        "sum": a + b,
        "minutes": rng.randint(1, 60),
        "status": "ok",
        "title": rng.choice(SONGS),
        "to": rng.choice(PEOPLE),
        "text": rng.choice(TEXTS),
        "item": rng.choice(ITEMS),
        "count": rng.randint(1, 12),
    }


def tool_documents(count: int, *, seed: int = 0) -> Iterator[Document]:
    """`count` chats in which the model calls one of the declared tools and reports the result."""
    rng = random.Random(seed)
    for _ in range(count):
        tool, other = rng.sample(TOOLS, 2)
        declared = rng.sample((tool, other), 2) if rng.random() < 0.5 else [tool]
        values = _values(rng)
        called = tool_value({name: values[name] for name in tool.parameters})
        returned = tool_value({name: values[name] for name in tool.result})
        system = rng.choice(SYSTEMS) + "".join(t.declaration() for t in declared)
        reply = (
            f"<|tool_call>call:{tool.name}{called}<tool_call|><|tool_response>response:{tool.name}{returned}<tool_response|>"
            + tool.reply.format(**values)
        )
        question = rng.choice(tool.ask).format(**values)
        yield Document(kind="tools", turns=(Turn("system", system), Turn("user", question), Turn("model", reply)))


def thinking_documents(documents: Iterable[Document]) -> Iterator[Document]:
    """The worked answers among `documents` again, with the work in the thinking channel and the last line as answer."""
    for document in documents:
        if len(document.turns) == 2 and "\n" in document.turns[1].text:
            work, _, answer = document.turns[1].text.rpartition("\n")
            reply = f"<|channel>thought\n{work}<channel|>{answer}"
            turns = (Turn("system", "<|think|>"), document.turns[0], Turn("model", reply))
            yield Document(kind="tools", turns=turns)
