"""Simple, varied prompts for sampling chats and tiny stories from a small instruct model.

Own templates filled with everyday words (own lists, and common concrete nouns from WordNet). Deterministic for a seed.
Knows nothing of the model that answers them.
"""

from __future__ import annotations

import random


def _listed(text: str, mark: str = " ") -> list[str]:
    return text.split(mark)


NAMES = _listed(
    "Anna Ben Clara Daniel Ella Finn Grace Henry Ivy Jack Kate Leo Mia Noah Olivia Peter Rosa Sam Tara Victor "
    "Wendy Zoe Lily Max Lucy Tom Emma Oscar Nina Paul"
)
ADJECTIVES = _listed(
    "little old brave lonely happy curious lazy tiny clever kind shy hungry magic lost broken golden blue red "
    "sleepy friendly silly quiet strange new wise noisy grumpy forgetful shiny invisible"
)
CHARACTERS = _listed(
    "girl boy cat dog rabbit fox bear mouse dragon robot owl farmer baker king queen wizard sailor teacher frog "
    "duck bird elephant turtle lion whale grandmother grandfather painter gardener fisherman"
)
PLACES = _listed(
    "in a forest|by the sea|on a farm|in a small village|in a big city|at school|in the mountains|in a garden|"
    "on an island|in a castle|at the market|in a library|on a train|in the snow|under a bridge|near a river|"
    "at home|on the moon",
    "|",
)
LESSONS = _listed(
    "sharing|being kind|telling the truth|working together|not giving up|being patient|saying sorry|"
    "helping a friend|trying new things|being brave|listening to others|keeping a promise",
    "|",
)
TOPICS = _listed(
    "the sun|the moon|rain|snow|wind|clouds|rainbows|thunder|gravity|electricity|magnets|sound|light|shadows|"
    "time|money|friendship|honesty|courage|sleep|dreams|memory|music|dance|painting|reading|writing|school|"
    "history|maps|oceans|rivers|mountains|deserts|volcanoes|earthquakes|dinosaurs|fossils|bees|butterflies|ants|"
    "spiders|birds|whales|dolphins|sharks|elephants|lions|bears|cats|dogs|horses|trees|flowers|seeds|leaves|"
    "fruit|vegetables|bread|cheese|milk|water|salt|sugar|honey|fire|ice|steam|air|the heart|the brain|the lungs|"
    "bones|muscles|teeth|skin|the stars|planets|the seasons|winter|spring|summer|autumn|day and night|cars|"
    "trains|planes|ships|bridges|houses|robots|computers|the internet|phones|books|clocks|farms|cities|villages|"
    "families|birthdays|games|football|swimming|running|cooking|gardening|camping|fishing|the alphabet|numbers|"
    "shapes|colors|exercise|healthy food|recycling|photosynthesis|the water cycle|energy|atoms|germs|vaccines|"
    "the five senses|laughter|kindness|patience|teamwork|the law|voting",
    "|",
)
GOALS = _listed(
    "sleep better|wake up early|study for a test|make new friends|save money|learn a language|start a garden|"
    "cook rice|boil an egg|bake bread|make tea|clean my room|stay calm|be more confident|write a letter|"
    "give a speech|read more books|drink more water|eat healthy food|exercise at home|train a puppy|"
    "care for a cat|grow tomatoes|wash clothes|pack for a trip|plan a party|find a job|say thank you|"
    "apologize to a friend|help my neighbor|stop wasting time|focus at work|learn to swim|ride a bike|draw a cat|"
    "play the guitar|write a story|take good photos|remember names|manage my time|deal with stress|"
    "be a good listener|save energy at home|keep plants alive|make a salad|make soup|organize my desk|"
    "get better at math|choose a gift|stay warm in winter",
    "|",
)
SENTENCES = _listed(
    "The cat sat on the mat.|I am going to the store.|She likes to read books.|The weather is nice today.|"
    "We ate dinner together.|He runs very fast.|The movie was boring.|My brother is tall.|"
    "The bus was late again.|They played in the park.|I forgot my keys.|The soup is too hot.|"
    "Our teacher is kind.|The dog barked all night.|She wrote a long letter.|He fixed the old car.|"
    "I love the sea.",
    "|",
)
THINGS = _listed(
    "apple banana orange lemon cherry carrot potato tomato onion pumpkin cookie cake pie sandwich egg pancake "
    "muffin bowl cup plate spoon fork kettle oven table chair bed lamp candle mirror window door key lock clock "
    "watch book letter pencil pen notebook map box bag basket bottle blanket pillow hat coat shoe sock scarf "
    "glove umbrella ring crown coin button needle rope ladder hammer shovel broom bucket wheel wagon bicycle car "
    "bus train boat ship plane balloon kite ball doll drum guitar piano flute violin bell flag tent camera radio "
    "phone computer robot telescope compass battery engine bridge tower castle house cabin barn school library "
    "bakery museum hospital farm garden park road tunnel fence gate fountain well cave hill mountain river lake "
    "pond island beach forest tree flower rose leaf seed mushroom cactus stone shell feather cloud star planet "
    "rocket magnet cat dog horse cow pig sheep goat chicken duck goose rabbit mouse squirrel fox wolf bear deer "
    "lion tiger elephant monkey giraffe zebra camel penguin owl eagle parrot frog turtle snake lizard fish shark "
    "whale dolphin octopus crab snail spider ant bee butterfly worm"
)
STORY_TEMPLATES = (
    "Write a very short story about a {a} {c}.",
    "Tell me a short story about a {a} {c} and a {n}.",
    "Write a tiny story about {name} and a {a} {n}.",
    "Tell me a story about a {c} who lives {p}.",
    "Write a short story for children about a {a} {c} {p}.",
    "Write a short story about {name} and {name2} {p}.",
    "Tell a bedtime story about a {c} who finds a {n}.",
    "Write a short story that teaches {l}, with a {c} named {name}.",
    "Write three sentences about a {c} and a {n} {p}.",
)
NOUN_TEMPLATES = (
    "What is a {n}?",
    "Explain what a {n} is to a child.",
    "Describe a {n} in two sentences.",
    "What is a {n} used for?",
    "Write one sentence with the words {n} and {n2}.",
    "What is the difference between a {n} and a {n2}?",
    "Tell me one fact about the {n}.",
    "List three words related to {n}.",
    "Write a short poem about a {n}.",
    "Why is a {n} useful?",
    "Where can you find a {n}?",
    "Describe a {a} {n}.",
)
TOPIC_TEMPLATES = (
    "Explain {t} to a child.",
    "Tell me something interesting about {t}.",
    "What makes {t} important?",
    "Write a short paragraph about {t}.",
    "Give me three facts about {t}.",
    "What do you know about {t}?",
    "Write a short poem about {t}.",
    "Explain {t} in one sentence.",
    "What would life be like without {t}?",
    "What is your favorite thing about {t}?",
    "Ask me a question about {t}.",
    "What should a beginner know about {t}?",
    "Compare {t} and {t2} in two sentences.",
)
GOAL_TEMPLATES = (
    "How can I {g}?",
    "Give me one tip to {g}.",
    "Give me three short tips to {g}.",
    "I want to {g}. What should I do first?",
    "What is the best way to {g}?",
    "My friend {name} wants to {g}. What is good advice?",
    "Why should I {g}?",
)
REWRITE_TEMPLATES = (
    "Rewrite this sentence in a polite way: {s}",
    "Make this sentence longer: {s}",
    "Change this sentence to the past tense: {s}",
    "Continue the story: {s}",
    "Turn this sentence into a question: {s}",
    "Write a sentence that could follow this one: {s}",
)
TALK = _listed(
    "Hello!|Hi, how are you?|Good morning!|What can you do?|Thank you!|I am bored.|I am sad today.|"
    "I am happy today.|Tell me a joke.|Say something nice.|Can you help me?|What should I eat for lunch?|"
    "What should I do this weekend?|I can't sleep.|Good night!|Tell me a riddle.|I had a bad day.|"
    "I passed my exam!|What is a good hobby?|Recommend a kind of book.",
    "|",
)


def generate_prompts(nouns: list[str], count: int, *, seed: int = 0) -> list[str]:
    """`count` distinct prompts (fewer when the templates run out), shuffled so that any prefix is a fair mix.

    nouns: more everyday words, which fill about two blanks in five; the rest come from this module's own list.
    """
    rng = random.Random(seed)
    families = (STORY_TEMPLATES, NOUN_TEMPLATES, TOPIC_TEMPLATES, GOAL_TEMPLATES, REWRITE_TEMPLATES, TALK)
    weights = (40, 24, 22, 9, 3, 2)
    seen: set[str] = set()
    for _ in range(count * 4):
        template = rng.choice(rng.choices(families, weights)[0])
        first, second = rng.sample(THINGS if rng.random() < 0.6 else nouns, 2)
        name, name2 = rng.sample(NAMES, 2)
        topic, topic2 = rng.sample(TOPICS, 2)
        prompt = template.format(
            a=rng.choice(ADJECTIVES),
            c=rng.choice(CHARACTERS),
            p=rng.choice(PLACES),
            l=rng.choice(LESSONS),
            n=first,
            n2=second,
            name=name,
            name2=name2,
            t=topic,
            t2=topic2,
            g=rng.choice(GOALS),
            s=rng.choice(SENTENCES),
        )
        seen.add(_articles(prompt))
        if len(seen) == count:
            break
    prompts = sorted(seen)
    rng.shuffle(prompts)
    return prompts


def _articles(text: str) -> str:
    """ "a" before a vowel becomes "an"."""
    words = text.split(" ")
    for i in range(len(words) - 1):
        if words[i] in ("a", "A") and words[i + 1][:1] in "aeiou":
            words[i] += "n"
    return " ".join(words)
