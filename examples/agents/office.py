"""What is in the office of `examples.agents.desktop`: mails that ask for something, invoices, and files.

Names begin with letters whose two cases differ in more than size: alone in a picture the others do not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

PEOPLE = ("Ada", "Bruno", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Maria")
SUPPLIERS = ("Acme", "Kestrel", "Lumen", "Marlow", "Tiller", "Brandt")
MONTHS = ("January", "February", "March", "April", "May", "June")
FILES = (
    "budget.txt",
    "plan.txt",
    "photo.png",
    "report.pdf",
    "letter.txt",
    "map.png",
    "list.txt",
    "guide.pdf",
)


@dataclass(frozen=True)
class Invoice:
    """supplier: of no other invoice, as are number and amount."""

    supplier: str
    number: str
    month: str
    amount: str


@dataclass(frozen=True)
class Mail:
    """sender: of no other mail. asks: pay, delete, note, or nothing. about: the supplier, the file's
    name or the code."""

    sender: str
    subject: str
    body: tuple[str, ...]
    asks: str = ""
    about: str = ""


@dataclass(frozen=True)
class Office:
    """files: their sizes, by name."""

    mails: tuple[Mail, ...]
    invoices: tuple[Invoice, ...]
    files: dict[str, str]

    @classmethod
    def drawn(cls, seed: int) -> Office:
        """The office of a seed."""
        rng = random.Random(f"office {seed}")
        amounts = rng.sample(range(200, 9999), len(SUPPLIERS))
        numbers = rng.sample(range(100, 999), len(SUPPLIERS))
        invoices = tuple(
            Invoice(supplier, f"INV-{number}", rng.choice(MONTHS), f"{amount} EUR")
            for supplier, number, amount in zip(
                rng.sample(SUPPLIERS, len(SUPPLIERS)), numbers, amounts, strict=True
            )
        )
        files = {name: f"{rng.randrange(2, 990)} KB" for name in rng.sample(FILES, len(FILES))}
        return cls(tuple(_mails(rng, invoices, tuple(files))), invoices, files)


def _mails(rng: random.Random, invoices: tuple[Invoice, ...], files: tuple[str, ...]) -> list[Mail]:
    """One of each person: two ask to pay, two to delete, two tell a code, two want nothing."""
    pay, drop = rng.sample(invoices, 2), rng.sample(files, 2)
    made = [
        *((_pay(invoice), "pay", invoice.supplier) for invoice in pay),
        *((_drop(name), "delete", name) for name in drop),
        *(
            (_code(code, place), "note", code)
            for code, place in zip(_codes(rng), ("safe", "door"), strict=True)
        ),
        (("Lunch", ("Let us have lunch", "on Friday at noon.")), "", ""),
        (("Holiday", ("I am away until Monday.", "Best regards.")), "", ""),
    ]
    rng.shuffle(made)
    people = rng.sample(PEOPLE, len(made))
    return [
        Mail(sender, subject, body, asks, about)
        for sender, ((subject, body), asks, about) in zip(people, made, strict=True)
    ]


def _codes(rng: random.Random) -> list[str]:
    return [f"{code}" for code in rng.sample(range(1000, 9999), 2)]


def _pay(invoice: Invoice) -> tuple[str, tuple[str, ...]]:
    return "Please pay", ("Please pay the invoice", f"of {invoice.supplier} over {invoice.amount}.")


def _drop(name: str) -> tuple[str, tuple[str, ...]]:
    return "File to delete", ("Nobody needs the file", f"{name} any more.", "Please delete it.")


def _code(code: str, place: str) -> tuple[str, tuple[str, ...]]:
    return f"The {place}", (f"The code of the {place}", f"is {code} from today.")
