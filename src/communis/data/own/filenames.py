"""Filenames: splits the names of files into subject, trial, sensor and so on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePosixPath

from communis.data.own.manifest import KEYS

WORDS = {
    "subject": "subject|subj|sub|person|participant|patient|user|volunteer|proband|pid|uid",
    "session": "session|sess|ses|day|visit",
    "trial": "trial|repetition|rep|run|take|recording|rec",
    "scene": "scene|room|environment|env|home|house|site",
    "label": "label|labels|activity|act|class|gesture|action|state|target|annotation|annotations",
}
SHORT = {"subject": "s|p|u", "trial": "t|r", "scene": "e", "session": "d", "label": "a"}
SENSOR = (
    "(?:lin(?:ear)?_?)?acc.*|gyr.*|mag.*|imu.*|hr|heart.*|bvp|ppg|eda|gsr|temp.*|ecg|eeg|emg|baro.*|"
    "pressure|light|orientation|rotation|gravity|quat.*|csi|rssi|wrist|ankle|chest|waist|hip|pocket|"
    "phone|watch|smartphone|smartwatch|thigh|shin|head|torso|arm|leg|foot|hand|belt|ear|left|right"
)
ACTIVITY = (
    ".*(?:walk|run|sit|stand|lying|lie|stair|jog|jump|cycl|bik|fall|sleep|rest|eat|drink|driv|read|"
    "typ|wash|cook|danc|row|squat|push|climb|elevator|idle|still|stress|baseline|null|other).*"
)
SEPARATORS = r"([_\-\s.=+,]+)"
DATE = r"(?:19|20)\d\d-?\d\d-?\d\d(?:[T_\- ]*\d\d[-.h]?\d\d(?:[-.m]?\d\d)?)?(?!\d)"
DATED = "\x01"  # stands for a date, which is no key
SENSORS = ("sensor", "sensor2")  # keys of the parts that tell sensors apart
FEW_FILES = 0.2  # a name of a smaller share of files than the most frequent one is no sensor
MOST_SENSORS = 30  # values of the part of the name that tells sensors apart
NUMBERED = r"[A-Za-z]?\d+"


@dataclass(frozen=True)
class Slot:
    """A part of the names that differs between files."""

    values: tuple[str, ...]  # one for each file
    before: str  # the word before it
    after: str = ""  # what follows it up to the next part that differs
    key: str = ""  # the key that it seems to be, "sensor", or nothing
    sure: bool = False  # whether a word of the name says so

    @property
    def distinct(self) -> list[str]:
        return sorted(set(self.values))


@dataclass(frozen=True)
class Names:
    """The pattern of the names of recordings."""

    pattern: str
    slots: tuple[Slot, ...] = ()
    files: tuple[str, ...] = ()  # those that the pattern is of
    left: tuple[str, ...] = ()  # those that it cannot be of
    # Of every sensor, which one or several parts of the names tell: the kind of its files.
    kinds: Mapping[tuple[str, ...], int] = field(default_factory=dict)

    def of(self, sensor: tuple[str, ...]) -> str:
        """Returns the pattern of the files of one sensor."""
        pattern = self.pattern
        for key, value in zip(SENSORS, sensor, strict=False):
            pattern = pattern.replace(f"{{{key}}}", value)
        return pattern

    @property
    def by_file(self) -> list[tuple[str, ...]]:
        """The sensor of every file."""
        slots = [slot for key in SENSORS if (slot := self.slot(key))]
        return list(zip(*(slot.values for slot in slots), strict=True))

    def has(self, key: str) -> bool:
        """Returns whether the pattern contains a key in braces."""
        return f"{{{key}}}" in self.pattern

    def slot(self, key: str) -> Slot | None:
        return next((slot for slot in self.slots if slot.key == key), None)


def split(files: Sequence[str], kinds: Sequence[int], taken: set[str], labelled: bool) -> Names:
    """Returns a pattern for the paths of recordings: equal parts stay, different parts become a
    name in braces or a star. kinds: for each file, which of them have the same columns; taken: keys
    that are columns of the files; labelled: whether the label is known from elsewhere."""
    depths = [file.count("/") for file in files]
    depth = Counter(depths).most_common(1)[0][0]
    chosen = [i for i, d in enumerate(depths) if d == depth]
    left = tuple(file for file, d in zip(files, depths, strict=True) if d != depth)
    suffix = PurePosixPath(files[chosen[0]]).suffix
    if len(left) > len(files) / 5:
        return Names(f"**/*{suffix}", files=tuple(files))
    paths = [files[i] for i in chosen]
    pieces: list[str | Slot] = []
    for level in zip(*(path.removesuffix(suffix).split("/") for path in paths), strict=True):
        pieces += [*_pieces(level), "/"]
    pieces[-1] = suffix
    for i, (piece, follows) in enumerate(pairwise(pieces)):
        if isinstance(piece, Slot):
            after = follows if isinstance(follows, str) else ""
            if after and not re.search(r"[^\W_]|/", after):  # a separator
                after += str(pieces[i + 2]) if isinstance(pieces[i + 2], str) else ""
            pieces[i] = replace(piece, after=after)
    slots = [piece for piece in pieces if isinstance(piece, Slot)]
    of_kind = [kinds[i] for i in chosen]
    keyed = _keyed(slots, of_kind, taken, labelled)
    pattern = ""
    rest = iter(keyed)
    for piece in pieces:
        if isinstance(piece, str):
            pattern += re.sub(r"[{}?]", "?", piece)  # braces of a name are no keys
        else:
            slot = next(rest)
            pattern += f"{{{slot.key}}}" if slot.key else "*"
    names = Names(pattern, tuple(keyed), tuple(paths), left)
    return replace(names, kinds=_frequent(names.by_file, of_kind)) if names.by_file else names


def _frequent(
    values: Sequence[tuple[str, ...]], kinds: Sequence[int]
) -> dict[tuple[str, ...], int]:
    """Returns the kind of the files of every sensor; names of few files are no sensors."""
    counts = Counter(values)
    least = FEW_FILES * max(counts.values())
    kind_of = dict(zip(values, kinds, strict=True))
    return {value: kind_of[value] for value in sorted(counts) if counts[value] >= least}


def _pieces(level: Sequence[str]) -> list[str | Slot]:
    """Returns the parts of the names of one level of folders, in their order."""
    if len(set(level)) == 1:
        return [level[0]]
    dates = [re.findall(DATE, name) for name in level]
    shapes = {tuple(re.sub(r"\d", "?", date) for date in found) for found in dates}
    shape = shapes.pop() if len(shapes) == 1 else ()
    if len(shape) == 1:
        level = [re.sub(DATE, DATED, name) for name in level]
    columns = _columns([re.split(SEPARATORS, name) for name in level])
    pieces: list[str | Slot] = []
    word = ""  # the last one that is the same in all names
    for values in columns:
        for part in _parts(values):
            if len(set(part)) > 1:
                pieces.append(Slot(part, word))
                word = ""
                continue
            text = part[0].replace(DATED, "".join(shape))
            pieces.append(text)
            word = text if re.search(r"[^\W_]", text) else word
    return pieces


def _columns(names: Sequence[list[str]]) -> list[tuple[str, ...]]:
    """Returns words and separators of all names, column by column. Where names have different
    numbers of words, numbers, sensors and equal words at both ends are columns, and what is between
    them is one."""
    same_length = len({len(words) for words in names}) == 1
    if same_length and len({tuple(words[1::2]) for words in names}) == 1:
        return list(zip(*names, strict=True))
    shortest = min(len(words) for words in names)
    head = _regular(names, shortest - 1)
    tail = _regular([words[::-1] for words in names], shortest - 1 - head)
    between = tuple("".join(words[head : len(words) - tail]) for words in names)
    first = list(zip(*(words[:head] for words in names), strict=True))
    last = list(zip(*(words[len(words) - tail :] for words in names), strict=True))
    return [*first, between, *last] if tail else [*first, between]


def _regular(names: Sequence[list[str]], most: int) -> int:
    """Returns the number of words and separators at the beginning that are alike in all names; it
    ends with a separator."""
    count = 0
    while count + 2 <= most:
        words = {name[count] for name in names}
        separators = {name[count + 1] for name in names}
        numbers = all(re.fullmatch(r"[A-Za-z]*\d+", word) for word in words)
        sensors = all(re.fullmatch(SENSOR, word.lower()) for word in words)
        alike = len(words) == 1 or numbers or sensors
        if not alike or len(separators) > 1:
            break
        count += 2
    return count


def _parts(values: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Returns letters and numbers apart where all values have the same letters, such as a1t2."""
    pieces = [re.findall(r"\d+|\D+", value) for value in values]
    letters = {tuple(re.sub(r"\d+", "0", piece) for piece in of_one) for of_one in pieces}
    if len(letters) > 1 or len(pieces[0]) < 4:
        return [values]
    return list(zip(*pieces, strict=True))


def _keyed(
    slots: Sequence[Slot], kinds: Sequence[int], taken: set[str], labelled: bool
) -> list[Slot]:
    """Returns the slots with the keys that they seem to be."""
    free = [key for key in (*KEYS, "label") if key not in taken]
    if labelled and "label" in free:
        free.remove("label")
    keys = _Keys(slots, free)
    keys.by_words(WORDS, sure=True)
    keys.sensors(kinds)
    keys.by_words(SHORT, sure=False)
    keys.by_values()
    return keys.slots()


class _Keys:
    """Gives keys to slots, one after the other."""

    def __init__(self, slots: Sequence[Slot], free: list[str]) -> None:
        self._slots = slots
        self._free = free  # keys that no slot has yet
        self._given: dict[int, tuple[str, bool]] = {}  # by place: the key, and whether it is sure

    def slots(self) -> list[Slot]:
        return [
            replace(slot, key=self._given[place][0], sure=self._given[place][1])
            if place in self._given
            else slot
            for place, slot in enumerate(self._slots)
        ]

    def by_words(self, words: Mapping[str, str], sure: bool) -> None:
        """Gives the keys that words of the names say. Those that are not sure do not follow."""
        for place, slot in enumerate(self._slots):
            said = [key for key in self._free if _says(slot, words[key], follows=sure)]
            if said and place not in self._given:
                self._give(place, said[0], sure)

    def sensors(self, kinds: Sequence[int]) -> None:
        """Gives the parts that tell sensors apart, at most two."""
        first = _sensor_slot(self._slots, kinds, self._given)
        if first is None:
            return
        self._give(first, SENSORS[0], len(set(kinds)) > 1)
        second = _sensor_slot(self._slots, [0] * len(kinds), self._given)
        if second is not None:
            self._give(second, SENSORS[1], False)

    def by_values(self) -> None:
        """Gives the remaining keys by the kind of the values: words are labels, numbers count."""
        places = [place for place in range(len(self._slots)) if place not in self._given]
        words = [p for p in places if not _all_match(self._slots[p], NUMBERED)]
        if "label" in self._free and words:
            activities = [p for p in words if _some_match(self._slots[p], ACTIVITY)]
            self._give((activities or words)[-1], "label", bool(activities))
        for place in places:
            if place not in self._given:
                order = ("subject", "trial", "session")
                self._give(place, next((key for key in order if key in self._free), ""), False)

    def _give(self, place: int, key: str, sure: bool) -> None:
        """Gives a key to a slot, and to others in which the same part of the name is repeated."""
        self._given[place] = key, sure
        if key in self._free:
            self._free.remove(key)
        for other, slot in enumerate(self._slots):
            if slot.values == self._slots[place].values:
                self._given[other] = key, sure


def _says(slot: Slot, words: str, follows: bool = True) -> bool:
    """Returns whether a slot is named by one of these words: in it, as in subject1, by the word
    before it, or by the one that follows it."""
    named = _all_match(slot, rf"(?:{words})\d+")
    before = re.fullmatch(rf"(?:.*[\W_])?(?:{words})[\W_]*", slot.before.lower())
    after = re.fullmatch(rf"[\W_]*(?:{words})(?:[\W_].*)?", slot.after.lower())
    return named or bool(before or (follows and after))


def _sensor_slot(
    slots: Sequence[Slot], kinds: Sequence[int], keys: Mapping[int, object]
) -> int | None:
    """Returns the place of the slot that tells sensors apart: files of one value have the same
    columns, and there are several kinds of files; or most of its values are names of sensors."""
    places = [p for p in range(len(slots)) if p not in keys]
    places = [p for p in places if len(slots[p].distinct) <= MOST_SENSORS]
    if len(set(kinds)) > 1:
        for place in places:
            if len(set(zip(slots[place].values, kinds, strict=True))) == len(slots[place].distinct):
                return place
    for place in places:
        values = slots[place].distinct
        known = [value for value in values if re.fullmatch(SENSOR, value.lower())]
        if len(known) > max(1, len(values) / 2):
            return place
    return None


def _all_match(slot: Slot, expression: str) -> bool:
    return all(re.fullmatch(expression, value.lower()) for value in slot.distinct)


def _some_match(slot: Slot, expression: str) -> bool:
    return any(re.fullmatch(expression, value.lower()) for value in slot.distinct)


def template(file: str, values: Mapping[str, str]) -> str:
    """Returns a path in which the values of keys are replaced by their names in braces, whole words
    only; longer values first."""
    for key, value in sorted(values.items(), key=lambda item: -len(item[1])):
        word = rf"(?<![A-Za-z0-9{{]){re.escape(value)}(?![A-Za-z0-9}}])"
        file = re.sub(word, f"{{{key}}}", file)
    return file
