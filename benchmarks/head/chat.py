"""Chat prompts of our own making: subjects under tasks. An endless, seeded stream."""

from __future__ import annotations

import random
from collections.abc import Iterator


def _list(text: str) -> list[str]:
    """Entries with bars between, over several lines."""
    return [entry.strip() for entry in text.replace("\n", "|").split("|") if entry.strip()]


SCIENCE = _list("""
photosynthesis|gravity|the water cycle|plate tectonics|vaccines|antibiotics|black holes|DNA replication|
the immune system|volcanoes|tides|magnetism|radioactivity|entropy|evolution by natural selection|
the greenhouse effect|neurons|superconductors|lasers|enzymes|the periodic table|acids and bases|osmosis|
sound waves|light refraction|earthquakes|the carbon cycle|nuclear fusion|comets|the life cycle of stars|
bacteria and viruses|genetic mutations|batteries|electric motors|semiconductors|ocean currents|coral reefs|
the ozone layer|hormones|the human heart|digestion|hibernation|pollination|fossils|glaciers|the speed of light|
Newton's laws of motion|thermodynamics|chemical equilibrium|catalysts|photosynthetic algae|stem cells|sleep|
memory|the Doppler effect|optical fibers|wind turbines|solar panels|metabolism
""")
COMPUTING = _list("""
hash tables|binary search|recursion|garbage collection|operating systems|public key cryptography|
databases and indexes|TCP/IP|neural networks|decision trees|sorting algorithms|linked lists|compilers|
virtual memory|unit testing|version control|REST APIs|dynamic programming|graph search|load balancing|caching|
regular expressions|object-oriented programming|functional programming|threads and processes|deadlocks|
containers|cloud computing|overfitting|gradient descent|transformers in machine learning|reinforcement learning|
blockchains|stacks and queues|binary trees|big O notation|floating point numbers|SQL joins|web browsers|DNS|
compression|error correcting codes
""")
HUMANITIES = _list("""
the Roman Empire|the French Revolution|the Industrial Revolution|the Renaissance|the Silk Road|
the printing press|ancient Egypt|the Cold War|the Great Depression|the Magna Carta|the Enlightenment|
Stoic philosophy|existentialism|utilitarianism|Impressionist painting|Gothic architecture|Greek tragedy|
Shakespeare's sonnets|haiku poetry|jazz music|classical music|supply and demand|inflation|globalization|
the gold standard|democracy|constitutional monarchy|human rights|the social contract|colonialism|
the abolition of slavery|women's suffrage|the United Nations|the Black Death|Confucianism|Buddhism|
the Ottoman Empire|the Maya civilization|the space race|trade unions|monetary policy|anthropology|
the origin of language|folk tales|photography as art|antitrust laws|urban planning|minimum wages
""")
PLACES = _list("""
Lisbon|Kyoto|the Scottish Highlands|Morocco|Iceland|New Zealand|Vienna|Patagonia|Istanbul|Vietnam|
the Greek islands|Cape Town|Peru|Montreal|Norway|Sri Lanka|Rome|Mexico City|the Alps|Seoul|Costa Rica|Prague|
Kenya|Tasmania|Barcelona|Jordan|Edinburgh|Bali|Budapest|Alaska
""")
PROFESSIONS = _list("""
pirate captain|detective|medieval knight|astronaut|chef|farmer|librarian|ship's doctor|gardener|robot|wizard|
museum guide|taxi driver|lawyer|football coach|physics teacher|clockmaker|journalist|beekeeper|
stand-up comedian|chess master|lighthouse keeper|mountain guide|nurse|architect|fisherman|economist|ghost|
dragon|talking tree|job interviewer|travel agent|fitness trainer|poet|philosopher|mechanic
""")
THINGS = _list("""
a lost key|a broken clock|a stray dog|a hidden letter|an old map|a stolen painting|a talking cat|a storm at sea|
a small bakery|a train that never stops|the last tree on Earth|a robot that learns to paint|two brothers|
a forgotten song|a secret garden|an unusual friendship|a long winter|a village festival|the first day at school|
a mysterious package|a chess match|a bridge between two towns|a wrong phone call|a message in a bottle|
a night market
""")
DAILY = _list("""
learning a new language|saving money|sleeping better|running a first marathon|growing tomatoes|
preparing for a job interview|cooking for one|reducing stress|reading more books|starting a small business|
training a puppy|writing a resume|repairing a bicycle|learning the guitar|planning a wedding|
moving to a new city|eating healthier|managing time|public speaking|making friends as an adult|
working from home|cleaning the kitchen|painting a room|choosing a laptop|meditation|planning a birthday party|
hiking alone|recycling at home|taking better photos|negotiating a salary
""")
PAIRS = _list("""
cats and dogs|tea and coffee|Python and Java|trains and planes|capitalism and socialism|novels and films|
lists and tuples|mitosis and meiosis|SQL and NoSQL databases|city life and country life|
renting and buying a home|weather and climate|solar and wind power|RAM and disk storage|stocks and bonds|
speed and velocity|viruses and bacteria|comedy and tragedy|wood and steel|yoga and running|TCP and UDP|
supervised and unsupervised learning|crocodiles and alligators|ethics and law|meteors and comets|
correlation and causation|monarchy and republic|deductive and inductive reasoning|arrays and linked lists|
emails and phone calls
""")
MAILS = _list("""
asking a colleague for help with a report|thanking a teacher|declining an invitation politely|
complaining about a late delivery|inviting a team to a workshop|requesting two days of leave|
applying for a summer job|following up after an interview|apologizing for a missed meeting|
announcing a new office|asking a landlord to repair the heating|welcoming a new employee|asking for a discount|
recommending a former student|cancelling a subscription|proposing a project to a manager|
reminding a client of an unpaid invoice|congratulating a friend on a new baby|asking a professor for advice|
reporting a problem with a website
""")
NAMES = _list("""
Anna|Ben|Carla|David|Elena|Farid|Grace|Hugo|Ines|Jonas|Keiko|Liam|Mara|Nils|Olga|Pedro|Rosa|Samir
Tina|Victor
""")
GOODS = _list("""
apples|books|pencils|marbles|tickets|cookies|stamps|chairs|bottles|candles|oranges|stickers|bricks
lamps
""")
COMPANIES = _list("""
Northwind|Brightleaf|Oakfield|Bluestone|Silverline|Harbor|Sunrise|Redwood|Polaris|Clearwater
""")
EXPLAIN = _list("""
Explain {x} in simple terms.|What is {x}?|Explain {x} to a ten-year-old.|How does {x} work? Give an example.|
Describe {x} in detail, and why it matters.|What are the main causes and effects of {x}?|
Give me five interesting facts about {x}.|Write a short introduction to {x} for a textbook.|
What are common misconceptions about {x}?|Who contributed most to our understanding of {x}, and how?|
Provide an overview of {x}, with its key terms defined.|Write a quiz of four questions about {x}, with answers.|
Discuss {x} in three paragraphs.|What questions about {x} are still open?|How has {x} changed our daily lives?|
Summarize what is known about {x} in a bulleted list.|Outline a lecture on {x}.|
Imagine you are a teacher. How would you make {x} easy to understand?|What is the history of {x}?|
Give arguments for and against studying {x} at school.
""")
COMPARE = _list("""
Compare {x}.|What is the difference between {x}? Use a table or a list.|
What do {x} have in common, and where do they differ?|Explain the advantages and disadvantages of {x}.|
Write a short debate about {x}.
""")
TRAVEL = _list("""
Write a blog post about a week in {x}.|Plan a three-day trip to {x}.|What food should I try in {x}?|
Describe a morning in {x} so that the reader feels being there.|Write a postcard from {x} to a friend.|
Suggest ten things to pack for {x}.|What should a visitor know about the culture and customs of {x}?|
Write a persuasive advertisement for holidays in {x}.
""")
STORY = _list("""
Write a short story about {x}.|Write a poem about {x}.|Write the opening paragraph of a novel about {x}.|
Write a dialogue between two strangers who find {x}.|Invent a fairy tale about {x}, with a moral.|
Describe {x} vividly, with all five senses.|Write four sentences about {x}, none longer than eight words.|
Write a review of a film about {x}.|Think of three titles for a story about {x} and explain them.|
Write a limerick about {x}.
""")
ROLE = _list("""
Pretend to be a {x}. How was your day?|You are a {x}. Introduce yourself to a group of children.|
Act as a {x} and give me advice about {y}.|Answer as a {x} would: what do you think about {y}?|
Speak like a {x} and explain {z}.|As a {x}, write a diary entry about your most difficult day.|
I want you to be a {x}. I will ask questions, and you stay in your role. My first question: why did you choose this life?
Imagine that you are a {x} who must persuade the mayor to support {y}.
""")  # noqa: E501 (an entry is a line)
ADVICE = _list("""
Give me step-by-step advice on {x}.|I am new to {x}. Where should I start?|
What are the most common mistakes with {x}?|Make a weekly plan for {x}.|Write a checklist for {x}.|
What are five tips for {x}?|Why is {x} so hard, and what helps?|Write a friendly newsletter article about {x}.|
How can I motivate a friend who struggles with {x}?
""")
MAIL = _list("""
Write an email {x}.|Draft a short and polite email {x}. Sign as {n}.|Write a formal letter {x}.|
Write a message {x} in at most five sentences.|
Give me two versions, one formal and one casual, of an email {x}.
""")
EXTRACT = (
    "Summarize this text in one sentence.\n\n{t}",
    "Extract all names and numbers from this text as JSON.\n\n{t}",
    "Read the text and answer: who is mentioned, where, and when?\n\n{t}",
    "Rewrite this text in simpler words.\n\n{t}",
    "List the facts of this text as bullet points.\n\n{t}",
    "Is the tone of this text positive or negative? Explain.\n\n{t}",
    "Turn this text into a table with the columns name, place, year and amount.\n\n{t}",
    "Correct the grammar of this text if needed.\n\n{t}",
    "Translate this text into French.\n\n{t}",
    "Write a headline for this text.\n\n{t}",
)


def chat_prompts(dice: random.Random) -> Iterator[str]:
    """Prompts without end."""
    kinds = (
        (5, lambda: dice.choice(EXPLAIN).format(x=dice.choice(dice.choice((SCIENCE, COMPUTING, HUMANITIES))))),
        (1, lambda: dice.choice(COMPARE).format(x=dice.choice(PAIRS))),
        (1.5, lambda: dice.choice(TRAVEL).format(x=dice.choice(PLACES))),
        (2, lambda: dice.choice(STORY).format(x=dice.choice(THINGS))),
        (2, lambda: _role(dice)),
        (2, lambda: dice.choice(ADVICE).format(x=dice.choice(DAILY))),
        (1, lambda: dice.choice(MAIL).format(x=dice.choice(MAILS), n=dice.choice(NAMES))),
        (2, lambda: dice.choice(EXTRACT).strip().format(t=_text(dice))),
        (3, lambda: _arithmetic(dice)),
        (1.5, lambda: _reasoning(dice)),
    )
    weights = [weight for weight, _ in kinds]
    while True:
        ((_, make),) = dice.choices(kinds, weights)
        yield make().strip()


def _role(dice: random.Random) -> str:
    subjects = {"x": dice.choice(PROFESSIONS), "y": dice.choice(DAILY), "z": dice.choice(SCIENCE + HUMANITIES)}
    return dice.choice(ROLE).format(**subjects)


def _text(dice: random.Random) -> str:
    """A paragraph of news that never happened."""
    sentences = (
        f"{dice.choice(NAMES)} and {dice.choice(NAMES)} opened a shop for {dice.choice(GOODS)} in "
        f"{dice.choice(PLACES)} in {dice.randint(1950, 2022)}.",
        f"{dice.choice(COMPANIES)} reported sales of {dice.randint(2, 900)} million dollars in "
        f"{dice.randint(2001, 2023)}, {dice.choice(('up', 'down'))} {dice.randint(1, 40)}% from the year before.",
        f"The festival of {dice.choice(PLACES)} drew {dice.randint(3, 90)},000 visitors, said {dice.choice(NAMES)}, "
        "who has organized it for a decade.",
        f"A study of {dice.randint(20, 4000)} adults found that {dice.choice(DAILY)} was easier for people who "
        "planned it.",
        f"The meeting on {dice.choice(HUMANITIES)} moves from Monday to Thursday, {dice.randint(1, 12)} pm, room "
        f"{dice.randint(10, 400)}; please tell {dice.choice(NAMES)} if you cannot come.",
        f"The phone is fast and its screen is bright, but after {dice.randint(2, 14)} months the battery was weak, and "
        f"the support of {dice.choice(COMPANIES)} did not answer.",
        f"Critics praised the new book about {dice.choice(HUMANITIES)}, although {dice.choice(NAMES)} found its "
        "last chapters too long.",
        f"Each box holds {dice.randint(4, 60)} {dice.choice(GOODS)} and costs {dice.randint(3, 90)} dollars; orders "
        f"above {dice.randint(2, 9)} boxes are shipped for free.",
    )
    return " ".join(dice.sample(sentences, dice.randint(2, 5)))


def _arithmetic(dice: random.Random) -> str:
    who, other, goods = dice.choice(NAMES), dice.choice(NAMES), dice.choice(GOODS)
    a, b, c = dice.randint(3, 60), dice.randint(2, 25), dice.randint(2, 12)
    return dice.choice(
        (
            f"{who} has {a} {goods} and buys {b} more. Then {who} gives {c} to {other}. How many are left?",
            f"A box of {goods} costs {a} dollars. How much do {c} boxes cost with a discount of {b}%?",
            f"A train travels {a * 10} km in {c} hours. How long does it need for {b * 20} km at the same speed?",
            f"What is {a * c} divided by {c}, plus {b}? Show your steps.",
            f"Solve for x: {c}x + {b} = {a}.",
            f"If f(x) = {c}x^2 - {b}x + {a}, what is f({dice.randint(-3, 5)})?",
            f"The sides of a rectangle are {a} cm and {b} cm. What are its area and its perimeter?",
            f"{who} is {b} years older than {other}. Together they are {2 * a + b} years old. How old is each?",
            f"A bag has {a} red and {b} blue {goods}. What is the probability of drawing a red one?",
            f"How many integers between {b} and {a + b} are divisible by {c}? Explain.",
            f"{who} earns {a} dollars an hour and works {c} hours a day, {dice.randint(3, 6)} days a week. "
            "How much is that in four weeks?",
            f"Is {a * b + c} a multiple of {c}? How can one tell?",
            f"The points ({c}, {b}) and ({a}, {b + c}) lie on a line. What is its slope?",
            f"A recipe for {c} people needs {b * 10} g of flour. How much do {a} people need?",
            f"Find the average and the median of {a}, {b}, {c}, {a + b} and {c + 1}.",
            f"If {who} can paint a room in {c} hours and {other} in {b} hours, how long do they need together?",
        )
    )


def _reasoning(dice: random.Random) -> str:
    one, two, three = dice.sample(NAMES, 3)
    goods, more = dice.sample(GOODS, 2)
    return dice.choice(
        (
            f"{one} is taller than {two}, and {two} is taller than {three}. Who is the shortest? Explain.",
            f"All {goods} in this room are blue. {one} holds something that is not blue. Can it be one of the {goods}?",
            f"{one}, {two} and {three} sit in a row. {two} is not at an end. Who can sit left? List all cases.",
            f"If it rains, {one} stays at home. {one} is not at home. Does it rain? Think step by step.",
            f"{one} collects {goods} and {two} collects {more}. Neither collects what {three} collects. What can it "
            "be?",
            f"{one} says that {two} always lies, and {two} says that {one} told the truth. Who lies?",
            f"A farmer must cross a river with {goods}, a goat and a wolf. How can he do it?",
            f"{one} has twice as many {goods} as {two}, who has three. How many does {three} have if all have twenty?",
            f"Yesterday was two days before {dice.choice(('Monday', 'Friday', 'Sunday'))}. What day is tomorrow?",
            f"What would happen if {dice.choice(GOODS)} became free for everybody? Reason step by step.",
            f"{one} walks {dice.randint(2, 9)} km north, then {dice.randint(2, 9)} km east. How far from home "
            f"is {one}?",
            f"Sort these by size and explain: {', '.join(dice.sample(GOODS, 4))}.",
        )
    )
