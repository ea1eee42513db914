"""Texts that repeat rightly: no task may act on them, whatever phase they stand in."""

import json
import random
from collections.abc import Iterator


def _rng(seed: int) -> random.Random:
    return random.Random(seed)


def _words(text: str) -> list[str]:
    return text.split()


NOUNS = _words(
    "harbour ladder copper meadow lantern orchard signal ferry quarry mill needle bridge "
    "canvas engine garden ticket valley winter market pencil corridor saddle furnace kettle "
    "island anchor thunder carpet mirror village pocket basket chimney whistle shadow cellar "
    "blanket feather candle hammer river stone window border letter forest bakery station "
    "museum compass harvest "
)
VERBS = _words(
    "carries follows repairs watches opens measures paints borrows counts lifts covers "
    "signals gathers answers weighs divides returns polishes ferries joins holds warms turns "
    "crosses "
)
ADJECTIVES = _words(
    "quiet narrow bright distant heavy wooden patient hollow silver crowded early frozen "
    "gentle broken careful golden rapid steep simple modest curious loyal empty pale northern "
)


def sentence(rng: random.Random) -> str:
    """A sentence of its own."""
    a, b, c = rng.sample(NOUNS, 3)
    x, y = rng.sample(ADJECTIVES, 2)
    verb, other = rng.sample(VERBS, 2)
    forms = (
        f"The {x} {a} {verb} the {y} {b} while a {c} {other} nothing at all.",
        f"Once a {a} {verb} every {b}, and no {x} {c} {other} the rest.",
        f"Nobody {verb} a {x} {a} unless the {b} {other} its {y} {c} first.",
        f"In the {a} a {y} {b} {verb} what the {c} {other}, however {x} it may be.",
    )
    return rng.choice(forms)


def prose(seed: int, sentences: int) -> str:
    """Paragraphs in which every sentence is new."""
    rng = _rng(seed)
    out = [sentence(rng) + ("\n\n" if i % 6 == 5 else " ") for i in range(sentences)]
    return "".join(out)


def _table(rng: random.Random, rows: int) -> str:
    head = "| town | state | count | open |\n|---|---|---|---|\n"
    return head + "".join(
        f"| {rng.choice(NOUNS)} | {rng.choice(('yes', 'no'))} | {rng.randint(0, 3)} | yes |\n"
        for _ in range(rows)
    )


def _csv(rng: random.Random, rows: int, cells: int) -> str:
    return "".join(
        ",".join(str(rng.randint(0, 1)) for _ in range(cells)) + "\n" for _ in range(rows)
    )


def _word_csv(rng: random.Random, rows: int) -> str:
    return "".join(
        f"{i},{rng.choice(NOUNS[:6])},{rng.choice(('open', 'closed'))},north\n" for i in range(rows)
    )


def _level(rng: random.Random, width: int, height: int) -> str:
    rows = ["#" * width]
    for _ in range(height - 2):
        inside = "".join(rng.choice("......#.o") for _ in range(width - 2))
        rows.append(f"#{inside}#")
    return "\n".join([*rows, "#" * width]) + "\n"


def _empty_level(width: int, height: int) -> str:
    inside = "#" + "." * (width - 2) + "#\n"
    return "#" * width + "\n" + inside * (height - 2) + "#" * width + "\n"


def _log(rng: random.Random, lines: int) -> str:
    return "".join(
        f"2031-04-{1 + i // 900:02d}T10:{i // 60 % 60:02d}:{i % 60:02d}Z INFO [worker-{i % 4}] "
        f"request id={rng.randint(1000, 9999)} status=200 took={rng.randint(1, 90)}ms\n"
        for i in range(lines)
    )


def _quiet_log(lines: int) -> str:
    return "".join(
        f"Apr 03 10:{i // 60 % 60:02d}:{i % 60:02d} host pump[{i}]: heartbeat ok, queue empty\n"
        for i in range(lines)
    )


def _legal(rng: random.Random, articles: int) -> str:
    out = []
    for i in range(1, articles + 1):
        a, b = rng.sample(NOUNS, 2)
        out.append(
            f"Article {i}. The Supplier shall deliver the {a} to the Customer at the {b} named in "
            f"Annex {i}. {sentence(rng)} The provisions of Article 2 shall apply mutatis mutandis. "
            f"Any dispute about the {a} shall be referred to the court at the seat of the "
            f"{rng.choice(ADJECTIVES)} {b}.\n\n"
        )
    return "".join(out)


def _code(rng: random.Random, functions: int) -> str:
    return "".join(
        f"def get_{rng.choice(NOUNS)}_{i}(self, key: str) -> int:\n"
        f'    """Return the {rng.choice(NOUNS)}."""\n'
        f"    value = self._items.get(key)\n    if value is None:\n"
        f"        raise KeyError(key)\n    return value + {i}\n\n"
        for i in range(functions)
    )


def _tests(count: int) -> str:
    return "".join(
        f"def test_{i}(client):\n    response = client.get('/items/{i}')\n"
        f"    assert response.status_code == 200\n    assert response.json() == {{'id': {i}}}\n\n"
        for i in range(count)
    )


def _assembly(rng: random.Random, blocks: int) -> str:
    return (
        "```\n"
        + "".join(
            f"push rbp\nmov rbp, rsp\nsub rsp, {rng.choice((16, 32, 48))}\nmov eax, edi\nadd eax, "
            "esi\nleave\nret\n"
            for _ in range(blocks)
        )
        + "```\n"
    )


def _minified(rng: random.Random, functions: int) -> str:
    return "".join(
        f"function {rng.choice('abcdef')}(b,c){{return b.{rng.choice('xyz')}?c(b):null}};"
        for _ in range(functions)
    )


def _json(rng: random.Random, records: int) -> str:
    return json.dumps(
        [
            {
                "id": i, "name": f"user{i}", "active": True, "roles": ["reader"], "score": 0,
                "town": rng.choice(NOUNS[:4]), "address": {"street": None, "zip": "00000"},
            }
            for i in range(records)
        ],
        indent=2,
    )  # fmt: skip


def _yaml(rng: random.Random, services: int) -> str:
    return "".join(
        f"- name: {rng.choice(NOUNS)}\n  image: registry/{rng.choice(NOUNS)}:latest\n  ports:\n"
        "    - containerPort: 8080\n      protocol: TCP\n  replicas: 1\n"
        for _ in range(services)
    )


def _html(rng: random.Random, items: int) -> str:
    return "".join(
        f'<li class="item"><a href="#">{rng.choice(NOUNS)}</a></li>\n' for _ in range(items)
    )


def _sql(rng: random.Random, rows: int) -> str:
    return "".join(
        f"INSERT INTO towns (id, name, open) VALUES ({i}, '{rng.choice(NOUNS)}', true);\n"
        for i in range(rows)
    )


def _song(rng: random.Random, verses: int) -> str:
    refrain = (
        "And the river runs down to the silver sea tonight,\n"
        "and the lanterns are burning low and bright.\n"
    )
    return "".join(
        "\n".join(sentence(rng)[:-1] for _ in range(4)) + "\n" + refrain + "\n"
        for _ in range(verses)
    )


def _bottles(verses: int) -> str:
    return "".join(
        f"{n} green bottles standing on the wall, {n} green bottles standing on the wall, and if "
        f"one green bottle should fall, there'd be {n - 1} green bottles standing on the wall.\n\n"
        for n in range(verses, 0, -1)
    )


def _litany(rng: random.Random, lines: int) -> str:
    return "".join(
        f"Holy {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}, stay with us.\n" for _ in range(lines)
    )


def _sums(count: int) -> str:
    return "".join(
        f"Case {i}: x = {i}, y = {i + 2}: the sum is {2 * i + 2}, not divisible by 7.\n"
        for i in range(count)
    )


def _columns(rng: random.Random, rows: int) -> str:
    return "".join(
        f"{rng.choice(NOUNS[:5]):<12}{rng.choice(('open', 'closed')):<10}north     summer\n"
        for _ in range(rows)
    )


def _tabs(rng: random.Random, rows: int) -> str:
    return "".join("\t".join(rng.choice(NOUNS[:5]) for _ in range(5)) + "\n" for _ in range(rows))


def _chess(rng: random.Random, moves: int) -> str:
    return " ".join(
        f"{i}. {rng.choice('NBRQK')}{rng.choice('abcdefgh')}{rng.randint(1, 8)} "
        f"{rng.choice('abcdefgh')}{rng.randint(1, 8)}"
        for i in range(1, moves)
    )


def _letters(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice("ACGT") for _ in range(count))


def _hex(rng: random.Random, lines: int) -> str:
    return "".join(
        f"{16 * i:08x}  " + " ".join(f"{rng.choice((0, 0, 255)):02x}" for _ in range(16)) + "\n"
        for i in range(lines)
    )


def _list(rng: random.Random, items: int) -> str:
    return "".join(
        f"{i}. Check that the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} is in its place.\n"
        for i in range(1, items)
    )


def _diff(rng: random.Random, hunks: int) -> str:
    return "".join(
        f"@@ -{i},3 +{i},3 @@\n-    old_{rng.choice(NOUNS)} = 1\n+    new_{rng.choice(NOUNS)} = 1\n"
        "     return value\n"
        for i in range(0, 10 * hunks, 10)
    )


def _chinese(rng: random.Random, sentences: int) -> str:
    chars = (
        "山水火木金土日月星雨风云花草鸟鱼人心手目口耳门窗书笔车船路"
        "桥城村春夏秋冬东西南北大小高低长短新旧红白"
    )
    return "".join(
        "".join(rng.choice(chars) for _ in range(rng.randint(8, 16))) + "。"
        for _ in range(sentences)
    )


def _clauses(rng: random.Random, count: int) -> str:
    """Sections that say much of one thing after another, as licences and statutes do."""

    def section(number: int) -> str:
        a, b, c = rng.sample(NOUNS, 3)
        days = rng.randint(5, 90)
        return (
            f"{number}.1 Where the {rng.choice(ADJECTIVES)} {a} is not delivered in time, the {b} "
            f"shall, without prejudice to any other right under this Agreement, be entitled to "
            f"withhold the {c} for {days} days.\n"
            f"{number}.2 Notwithstanding section {number}.1, no {a} shall be deemed {b} unless a "
            f"notice of the {c} has been given in writing. {sentence(rng)}\n"
            f"{number}.3 Sections {number}.1 and {number}.2 shall not apply in cases of force "
            "majeure.\n"
        )

    return "".join(map(section, range(1, count)))


def _tiles(rng: random.Random, rows: int) -> str:
    """A layer of a level as editors save it."""
    data = [[rng.choice((0, 0, 0, 0, 1, 17)) for _ in range(32)] for _ in range(rows)]
    return json.dumps({"name": "ground", "width": 32, "height": rows, "data": data})


def _traces(rng: random.Random, count: int) -> str:
    """Traces of one recursion after another."""

    def trace() -> str:
        name, part = rng.sample(NOUNS, 2)
        frame = (
            f'  File "/srv/{name}.py", line {rng.randint(9, 99)}, in {part}\n    {part}(x.left)\n'
        )
        repeated = f"  [Previous line repeated {rng.randint(90, 990)} more times]\n"
        head = "Traceback (most recent call last):\n"
        return f"{head}{frame * 3}{repeated}RecursionError: too deep in {name}\n"

    return "".join(trace() for _ in range(count))


def rightful_texts() -> Iterator[tuple[str, str]]:
    """Name and text. The random ones are the same in every run."""
    for seed in (1, 2):
        rng = _rng(seed)
        yield f"prose {seed}", prose(seed, 300)
        yield f"table {seed}", _table(rng, 200)
        yield f"binary csv {seed}", _csv(rng, 200, 12)
        yield f"word csv {seed}", _word_csv(rng, 300)
        yield f"level {seed}", _level(rng, 60, 40)
        yield f"log {seed}", _log(rng, 200)
        yield f"legal {seed}", _legal(rng, 40)
        yield f"code {seed}", _code(rng, 60)
        yield f"assembly {seed}", _assembly(rng, 60)
        yield f"minified {seed}", _minified(rng, 200)
        yield f"json {seed}", _json(rng, 120)
        yield f"yaml {seed}", _yaml(rng, 120)
        yield f"html {seed}", _html(rng, 150)
        yield f"sql {seed}", _sql(rng, 150)
        yield f"song {seed}", _song(rng, 10)
        yield f"litany {seed}", _litany(rng, 200)
        yield f"columns {seed}", _columns(rng, 250)
        yield f"tabs {seed}", _tabs(rng, 250)
        yield f"chess {seed}", _chess(rng, 200)
        yield f"letters {seed}", _letters(rng, 1600)
        yield f"hex {seed}", _hex(rng, 100)
        yield f"checklist {seed}", _list(rng, 120)
        yield f"diff {seed}", _diff(rng, 80)
        yield f"chinese {seed}", _chinese(rng, 300)
        yield f"clauses {seed}", _clauses(rng, 40)
        yield f"tiles {seed}", _tiles(rng, 60)
        yield f"traces {seed}", _traces(rng, 30)
        yield f"long level {seed}", _level(rng, 120, 80)
        yield f"long chinese {seed}", _chinese(rng, 1200)
    yield "empty level", _empty_level(40, 20)
    yield "quiet log", _quiet_log(200)
    yield "tests", _tests(60)
    yield "bottles", _bottles(40)
    yield "sums", _sums(150)
    yield "zeros", "0,0,0,0,0,0,0,0\n" * 16
    yield "prose and tables", prose(3, 60) + _table(_rng(3), 100) + prose(4, 60)
    yield "three equal tables", _table(_rng(5), 60) * 3
    yield "one paragraph three times", (prose(6, 6) + "\n\n") * 3


# 256 times one token, as `(token, count)`, behind some prose of its own.
EQUAL_TOKENS = ("=", "====", "----------------", " the", "0", "no ", "木", "\n", "ha", "#", " |")
