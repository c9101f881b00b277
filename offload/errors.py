"""Every error that the library raises on purpose: which component, what was found, what to do.

OffloadError
├── SpecError            the user asked for what does not exist or cannot be (also a ValueError)
├── DoesNotFitError      no plan that honours the wish fits the card, and the user said "refuse"
├── CardError            the card cannot be found, read or used
├── StateError           a call at the wrong time, on the wrong thread, or on an owned module
└── OrderError           two accesses to card memory that no event orders (the checker's finding)
"""


class OffloadError(Exception):
    """Any error of the residency library."""


class SpecError(OffloadError, ValueError):
    """The user asked for something that does not exist or cannot be."""


class DoesNotFitError(OffloadError):
    """No plan that honours the wish fits the card."""


class CardError(OffloadError):
    """The card cannot be found, read or used."""


class StateError(OffloadError, RuntimeError):
    """A call at the wrong time, on the wrong thread, or on a module that already has an owner."""


class OrderError(OffloadError):
    """Two accesses to the same card memory are ordered by no event."""
