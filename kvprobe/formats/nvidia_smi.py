"""What people save or paste of ``nvidia-smi``: topology matrices, GPU lists, errors; other vendors' tools.

One file may hold a whole terminal session. Which capability a ``topo -p2p`` table is about stands only in
the command before it (or in the file's name), so both are kept track of.
"""

from __future__ import annotations

import re

import msgspec

from kvprobe.errors import FormatError
from kvprobe.formats.nvidia_smi_lists import ListedGpu, ListReader
from kvprobe.formats.nvidia_smi_tables import Table, TableReader
from kvprobe.formats.nvidia_smi_text import Foreign, ToolError, clean_lines, find_error, find_foreign

P2P_MEANING = {
    "OK": "Status Ok", "CNS": "Chipset not supported", "GNS": "GPU not supported", "TNS": "Topology not supported",
    "NS": "Not supported", "DR": "Disabled by regkey", "U": "Unknown", "X": "Self",
}  # fmt: skip
LINK_MEANING = {
    "PIX": "at most one PCIe bridge", "PXB": "several PCIe bridges, no host bridge", "PHB": "a PCIe host bridge (CPU)",
    "NODE": "several PCIe host bridges of one NUMA node", "SYS": "the link between CPU sockets (NUMA nodes)",
    "SOC": "the link between CPU sockets (NUMA nodes)", "INTERNAL": "two GPUs of one board",
}  # fmt: skip
CAPABILITY = {"r": "read", "w": "write", "n": "nvlink", "a": "atomics", "p": "pcie", "rw": "read and write"}

_WORDS = {
    "read": "r", "write": "w", "nvlink": "n", "atomics": "a", "atomic": "a", "prop": "p", "pcie": "p", "readwrite": "rw",
}  # fmt: skip
_LETTER = r"(?:rw|wr|[rwnap])"
_COMMAND = re.compile(r"\bnvidia-smi(?:\.exe)?['\"]?\s+([^|;&>#\n]*)")
_P2P_OPTION = re.compile(r"-{1,2}p2p(?:status)?[\s=]+(\$?\{?\w+\}?)")
_LOOP = re.compile(rf"\bfor\s+(\w+)\s+in\s+((?:{_LETTER}\s*)+);?\s*do\b")
_HEADING = re.compile(
    rf"^\W*(?:nvidia-smi\s+)?(?:topo\s+)?(?:-*p2p(?:status)?\b)?\W*({_LETTER}|{'|'.join(_WORDS)})(?:\s+capability)?\W*$",
    re.IGNORECASE,
)
_NAME = re.compile(
    rf"p2p[^A-Za-z0-9]*(?:status|caps?|capability)?[^A-Za-z0-9]*({_LETTER}|{'|'.join(_WORDS)})(?![A-Za-z])"
    rf"|^topo[^A-Za-z0-9]+({_LETTER}|{'|'.join(_WORDS)})(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_NIC_LEGEND = re.compile(r"^(NIC\d+): (\S+)$")
_LEGEND = re.compile(r"^(X|OK|[A-Z]{1,4}|NV#)\s+= (.+)$")
_FILE_LIMIT_LINES = 20_000


class SmiText(msgspec.Struct, frozen=True, kw_only=True):
    """Everything recognised in one file."""

    source: str
    tables: tuple[Table, ...] = ()
    gpus: tuple[ListedGpu, ...] = ()
    nics: dict[str, str] = {}
    """``NIC0`` -> ``mlx5_0``, from the NIC legend."""
    nvlink_gigabytes: dict[int, tuple[float, ...]] = {}
    """GPU index -> GB/s of each active link (``nvidia-smi nvlink -s``)."""
    errors: tuple[ToolError, ...] = ()
    foreign: Foreign | None = None
    legend: dict[str, str] = {}
    driver: str | None = None
    cuda: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Nothing was recognised."""
        return not (self.tables or self.gpus or self.nvlink_gigabytes or self.errors or self.foreign)


def capability_in_name(name: str) -> str | None:
    """The letter in a file name such as ``p2p_r.txt`` or ``topo-p2p-read.log``."""
    match = _NAME.search(name)
    return _letter(match[1] or match[2]) if match else None


def parse(text: str, source: str, capability: str | None = None, *, explicit: bool = False) -> SmiText:
    """Read one file. ``capability`` is what the caller knows of it: guessed from the file's name, or told by
    the user (``explicit``). A command in the text that has a letter wins. Raises FormatError for what is no text.
    """
    count = max(text.count("\n"), text.count("\r"))
    if count > _FILE_LIMIT_LINES:
        raise FormatError(f"{source} has {count:,} lines; no nvidia-smi output is that long.")
    lines = clean_lines(text, source)
    return _Session(source, capability, explicit).read(lines, complete=text.endswith(("\n", "\r", "\x00")))


class _Session:
    def __init__(self, source: str, capability: str | None, explicit: bool) -> None:
        self.source = source
        self.explicit = explicit
        self.capability = capability
        self.queue: list[str] = []
        self.asked = False
        self.heading: str | None = None
        self.host: str | None = None
        self.lists = ListReader()
        self.nics: dict[str, str] = {}
        self.errors: list[ToolError] = []
        self.legend: dict[str, str] = {}

    def read(self, lines: list[str], *, complete: bool) -> SmiText:
        foreign = find_foreign(lines)
        reader = TableReader()
        for number, line in enumerate(lines, 1):
            last = number == len(lines) and not complete
            if self._command(line):
                reader.close()
            elif reader.take(line, number, cut=last):
                if reader.opened:
                    self._label(reader)
            else:
                self._other(line, number)
        reader.close()
        # Some foreign tools print NVIDIA's very words; only a command says then that a table is NVIDIA's.
        tables = tuple(t for t in reader.tables if t.kind != "none" and (self.asked or not foreign))
        return SmiText(
            source=self.source,
            tables=tables,
            gpus=self.lists.found(),
            nics=self.nics,
            nvlink_gigabytes={i: tuple(rates) for i, rates in self.lists.nvlink_gigabytes.items()},
            errors=tuple(self.errors),
            foreign=foreign,
            legend=self.legend,
            driver=self.lists.driver,
            cuda=self.lists.cuda,
            warnings=tuple(reader.warnings),
        )

    def _command(self, line: str) -> bool:
        """A prompt line. Several commands in one line, or a loop over letters, announce several tables."""
        if "nvidia-smi" not in line and "for " not in line or find_error(line):
            return False
        loop = _LOOP.search(line)
        letters = [_letter(part) for part in loop[2].split()] if loop else []
        found = [m[1] for m in _COMMAND.finditer(line) if "topo" in m[1] or "-L" in m[1] or "-q" in m[1]]
        topo = [args for args in found if re.search(r"\btopo\b", args)]
        if not topo:
            if loop:
                self.queue = letters
            return bool(found)
        queue = []
        for args in topo:
            option = _P2P_OPTION.search(args)
            if option and option[1].startswith("$"):
                queue += letters or ["?"]
            elif option and re.fullmatch(_LETTER, option[1]):
                queue.append(_letter(option[1]))
            elif "p2p" in args:
                queue.append("?")
            elif re.search(r"-mp?\b|--matrix", args):
                queue.append("m")
        self.queue, self.asked, self.heading = queue, True, None
        prompt = re.match(r"^\s*(?:\[?(\S+?@)?([\w.-]+)[:\s\]]\S*\s*)?[#$>%]", line)
        self.host = prompt[2] if prompt else None
        return True

    def _label(self, reader: TableReader) -> None:
        """Say which question the table that was just opened answers."""
        expected = self.queue.pop(0) if self.queue else None
        named = None if expected in (None, "?", "m") else expected
        # After a command without a usable letter, the file's name must not lend one to its table.
        fallback = self.capability if self.explicit or expected is None or not self.asked else None
        reader.label(named or self.heading or fallback, host=self.host, matrix_asked=expected == "m")
        self.heading = None

    def _other(self, line: str, number: int) -> None:
        text = line.strip()
        if not text:
            return
        error = find_error(text)
        if error:
            self.errors.append(msgspec.structs.replace(error, line=number))
            if self.queue:
                self.queue.pop(0)
            return
        if match := _NIC_LEGEND.match(text):
            self.nics[match[1]] = match[2]
        elif match := _LEGEND.match(text):
            self.legend[match[1]] = match[2]
        elif self.lists.take(text):
            return
        elif match := _HEADING.match(text):
            self.heading = _letter(match[1])


def _letter(text: str) -> str:
    letter = _WORDS.get(text.lower(), text.lower())
    return "rw" if letter == "wr" else letter
