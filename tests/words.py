"""Find the words of docs/words.md in prose: `python -m tests.words` prints each with its replacement, and exits 1."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "words.md"
#: Between two words: spaces, and at most one end of a line, after which a comment continues.
_GAP = r"[ \t]*(?:[ \t]|\n)[ \t]*(?:(?:#:?|--|>|\*)[ \t]+)?"
_WORD = re.compile(r"(?<![\w.-])[A-Za-z]+")
_ENTRY = re.compile("`(.+?)`")
#: Code in Markdown, quoted text (which may be Postgres's), placeholders and tags.
_QUOTED = re.compile(r'(?ms)^ *```.*?^ *```|`[^`\n]*\n?[^`\n]*`|"[^"\n]*"|\{[^{}\n]*\}|<[/\w][^<>\n]*>')
_KEYS = re.compile(r'"?[$\w.-]+"?:(?=\s)|["{}]')
_SQL = re.compile(r"\s*(--|SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|ALTER|DROP|COMMENT|GRANT|SET|FROM|WHERE|AND)\b")
_PYTHON = re.compile(r"(#[^\n]*)|\bdef test_(\w+)|(?:\b[rbfRBF]{1,2})?(\"\"\"|'''|\"|')((?:\\.|[^\\])*?)\3", re.DOTALL)


def main() -> int:
    rules = Rules(PAGE.read_text(encoding="utf-8"))
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    paths = [ROOT / name for name in names if Path(name).suffix in _PROSE and (ROOT / name).is_file()]
    found = [(path, words) for path in paths for words in rules.broken_in(path.read_text("utf-8"), path.suffix)]
    print(*(f"{path.relative_to(ROOT)}:{words}\n" for path, words in found), sep="", end="")
    return 1 if found else 0


class Rules:
    """The rows of the page: words in code style, their replacement, and where they are fine."""

    def __init__(self, page: str) -> None:
        rows = [[*line.strip("| ").split("|"), ""] for line in page.splitlines() if line.startswith("| `")]
        self._fine = re.compile("|".join(_pattern(each) for row in rows for each in _ENTRY.findall(row[2])) or "(?!)")
        self._by_first_word: dict[str, list[tuple[re.Pattern[str], str]]] = {}
        for entry, instead in ((entry, row[1].strip()) for row in rows for entry in _ENTRY.findall(row[0])):
            for first in entry.split(" ")[0].rstrip(".").split("/"):
                self._by_first_word.setdefault(first, []).append((re.compile(_pattern(entry)), instead))

    def broken_in(self, text: str, suffix: str) -> Iterator[str]:
        prose = _PROSE[suffix](text)
        for word in _WORD.finditer(prose):
            for first in {word[0], word[0].lower()} & self._by_first_word.keys():
                for pattern, instead in self._by_first_word[first]:
                    if (match := pattern.match(prose, word.start())) and not self._is_fine(match):
                        line = prose.count("\n", 0, match.start()) + 1
                        yield f"{line}: {' '.join(_WORD.findall(match[0]))!r}: {instead}"

    def _is_fine(self, match: re.Match[str]) -> bool:
        near = self._fine.finditer(match.string, max(0, match.start() - 40), match.end() + 40)
        return any(fine.start() <= match.start() < fine.end() for fine in near)


def _pattern(entry: str) -> str:
    """`a/b` is either word, a full stop the end of a clause, and only a capital letter is matched by case."""
    choices = ["|".join(map(re.escape, each.rstrip(".").split("/"))) for each in entry.split(" ")]
    words = _GAP.join(f"(?{'' if choice[0].isupper() else 'i'}:{choice})" for choice in choices)
    return rf"\b{words}(?![\w-]|\.\w| ?=)" + r"(?=\s*(?:[.,;:!?)~]|\Z))" * entry.endswith(".")


def _only(pattern: re.Pattern[str], text: str, *, prose_of: Callable[[re.Match[str]], str] | None = None) -> str:
    """Keep the prose of all matches, on its lines."""
    kept, end = [], 0
    for match in pattern.finditer(text):
        kept += [_masked(text[end : match.start()]), prose_of(match) if prose_of else _unquoted(match[0])]
        end = match.end()
    return "".join([*kept, _masked(text[end:])])


def _masked(text: str, mask: str = "~") -> str:
    return " ".join(["", mask, "\n" * text.count("\n"), mask, ""]) if text.strip() else text


def _unquoted(text: str) -> str:
    return _QUOTED.sub(lambda match: _masked(match[0], "_"), text)


def _prose_of_python(match: re.Match[str]) -> str:
    """Comments, names of tests as sentences, and strings of several words; of SQL, its comments."""
    comment, name, _, text = match.groups()
    if comment or name:
        return _unquoted(comment) if comment else f"~{name.replace('_', ' ').capitalize()}"
    prose = (_PROSE[".sql"] if _SQL.match(text) else _unquoted)(text)
    return f" {prose} " if " " in text.strip() else _masked(match[0])


_PROSE: Mapping[str, Callable[[str], str]] = {
    ".md": _unquoted,
    ".py": partial(_only, _PYTHON, prose_of=_prose_of_python),
    ".sql": partial(_only, re.compile("--.*")),
    **dict.fromkeys([".json", ".yaml", ".yml"], lambda text: _unquoted(_KEYS.sub(" ", text))),
    **dict.fromkeys(["", ".sh", ".toml", ".conf", ".example"], partial(_only, re.compile(r"(?m)(?:^|(?<=\s))#.*"))),
}

if __name__ == "__main__":
    sys.exit(main())
