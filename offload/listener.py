"""What a request tells whoever measures it. By default nobody listens, and nothing is done.

Calls come from the owner thread in host order; none of them may wait for the card.
"""

from offload.report import RequestUsage


class Listener:
    """Hears every pass of a component and every call of a unit, each in four moments."""

    def request_begins(self, usage: RequestUsage) -> None: ...

    def request_is_over(self, *, finished: bool) -> None:
        """All runs have ended; ``usage`` is complete."""

    # --- a pass ------------------------------------------------------------------------------
    def pass_comes(self, component: str) -> None:
        """Nothing has been done for it yet."""

    def pass_begins(self, component: str) -> None:
        """Its memory is held and its trunk is there."""

    def pass_ends(self, component: str) -> None:
        """It has computed; its memory is still held."""

    def pass_is_over(self, component: str) -> None:
        """Its run may have ended."""

    def pass_fails(self, component: str) -> None:
        """An error leaves it; whoever called may go on."""

    # --- a unit's call -----------------------------------------------------------------------
    def unit_comes(self) -> None:
        """The engine brings it in and lets the computation wait for it."""

    def unit_begins(self, unit: str) -> None: ...

    def unit_ends(self) -> None: ...

    def unit_is_over(self) -> None:
        """The engine has given its place free and brought in what comes next."""
