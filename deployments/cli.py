"""The ``tenure`` command: draw, survey, plan, look at a fleet, and check a machine.

Reads arguments and prints; each command's work is done elsewhere. Importing this imports no torch.
"""

import json
import os
import secrets
from pathlib import Path
from typing import Any

import click
import httpx

from deployments.card_choice import all_card_facts, card_facts, open_card
from deployments.config import AppConfig, CardsConfig, parse_size
from deployments.drawing import Drawing, draw
from deployments.errors import TenureError
from deployments.foresight import Foresight, foresee, foresee_each
from deployments.images import encode_png
from deployments.messages import GenerateJob
from deployments.progress import ProgressBar
from deployments.serve_file import read_serve_file
from deployments.surveys import read_config, read_survey, survey_model
from deployments.tables import cards_table, fleet_table, plan_table, survey_table
from deployments.version import version
from offload import CardFacts, DoesNotFitError, OffloadError, explain, format_bytes

DEFAULT_SEEDS = 1 << 31
FLEET_TIMEOUT_S = 10.0
KEY_VARIABLE = "TENURE_API_KEY"
DOES_NOT_FIT, FAILED = 1, 2  # exit codes beside 0

CARD_HELP = (
    "A simulated card of the file, one such as rtx4090, or a size such as 24GiB; auto: the first."
)
CARD = click.option("--card", help=CARD_HELP)
JSON = click.option("--json", "as_json", is_flag=True, help="For a program to read.")


class Failure(click.ClickException):
    """An error that the user can act on, as one line."""

    exit_code = FAILED


class NothingFits(Failure):
    """There is no plan for the card."""

    exit_code = DOES_NOT_FIT


class Commands(click.Group):
    """Turns every error that is raised on purpose into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DoesNotFitError as error:
            raise NothingFits(str(error)) from error
        except (TenureError, OffloadError) as error:
            raise Failure(str(error)) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version())
def main() -> None:
    """Serve diffusers pipelines, each card at the speed it can really reach."""


@main.command()
@click.argument("config")
@click.argument("prompt")
@click.option(
    "-o", "--output", default="out.png", show_default=True, type=click.Path(path_type=Path)
)
@click.option("--seed", type=click.IntRange(min=0), help="Random where it is not given.")
@click.option("--steps", type=click.IntRange(min=1))
@click.option("--size", help="WIDTHxHEIGHT in pixels.")
@click.option("--negative-prompt")
@click.option("--guidance-scale", type=float)
@click.option("--true-cfg-scale", type=float)
@CARD
def generate(config: str, prompt: str, output: Path, card: str | None, **asked: Any) -> None:
    """Draw PROMPT with the model of CONFIG, without a server."""
    app = read_serve_file(config).config
    job = _job(app, prompt, **asked)
    with ProgressBar() as bar:
        drawing = draw(app, job, open_card(app.cards, card), click.echo, bar)
    output.write_bytes(encode_png(drawing.images[0]))
    _print_warnings(drawing.warnings)
    click.echo(f"{output}: {job.width}x{job.height}, seed {job.seed}, {_costs(drawing)}")


def _job(config: AppConfig, prompt: str, **asked: Any) -> GenerateJob:
    try:
        width, height = parse_size(asked.pop("size") or config.defaults.size)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--size") from error
    seed = asked.pop("seed")
    return GenerateJob(
        request_id="command",
        prompt=prompt,
        width=width,
        height=height,
        steps=asked.pop("steps") or config.defaults.steps,
        seed=secrets.randbelow(DEFAULT_SEEDS) if seed is None else seed,
        **asked,
    )


def _costs(drawing: Drawing) -> str:
    usage = drawing.usage
    return (
        f"{usage.seconds:.2f} s after {drawing.load_s:.2f} s of loading; "
        f"{format_bytes(usage.copied_bytes)} copied to the card, {usage.stall_s:.2f} s waited for "
        f"copies, peak {format_bytes(usage.peak_bytes)}"
    )


@main.command()
@click.argument("model")
@JSON
def survey(model: str, as_json: bool) -> None:
    """Show what MODEL is made of, without reading a weight.

    MODEL is a Serve file, a model folder, a hub name in the local cache, or an architecture that
    comes with Tenure, such as flux.1-dev. The JSON is for `tenure plan --facts`.
    """
    found = survey_model(read_config(model))
    _print_warnings(found.warnings)
    click.echo(json.dumps(found.to_dict(), indent=2) if as_json else survey_table(found.facts))


@main.command()
@click.argument("config")
@click.option("--card", "wanted", multiple=True, help=f"{CARD_HELP} May be given several times.")
@click.option("--all-cards", is_flag=True, help="Every card that is known by name, a line each.")
@click.option("--facts", help="The JSON of `tenure survey`, instead of the model's own files.")
@JSON
@click.pass_context
def plan(ctx: click.Context, /, config: str, **asked: Any) -> None:
    """Show what would stay on the card, and why. Exits with 1 where the wish does not fit.

    CONFIG is a Serve file, or whatever `tenure survey` takes. Neither a card nor weights are
    needed. With several cards it exits with 0 only where the wish fits on every one.
    """
    app = read_config(config)
    cards = _cards(app.cards, asked["wanted"], asked["all_cards"])
    found = read_survey(asked["facts"], app) if asked["facts"] else survey_model(app)
    _print_warnings(found.warnings)
    if len(cards) == 1:
        one = foresee(app, found, cards[0])
        _print_plan(one, asked["as_json"])
        wish_fits = one.wish_fits
    else:
        each = foresee_each(app, found, cards)
        shown = [one.to_dict() for one in each]
        click.echo(json.dumps(shown, indent=2) if asked["as_json"] else cards_table(shown))
        wish_fits = all(one.wish_fits for one in each)
    ctx.exit(0 if wish_fits else DOES_NOT_FIT)


def _cards(cards: CardsConfig, wanted: tuple[str, ...], every: bool) -> tuple[CardFacts, ...]:
    if every and wanted:
        raise click.UsageError("--all-cards leaves nothing for --card to choose; give one of them")
    if every:
        return all_card_facts(cards)
    return tuple(card_facts(cards, name) for name in wanted or (None,))


def _print_plan(foresight: Foresight, as_json: bool) -> None:
    found = foresight.to_dict()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(f"{foresight.card.name}, {format_bytes(foresight.card.free_bytes)} free\n")
    click.echo(f"{plan_table(found['components'])}\n")
    click.echo(explain(foresight.plan, foresight.facts))


@main.command()
@click.argument("url")
def fleet(url: str) -> None:
    """Show the replicas of a running server, such as http://127.0.0.1:8000.

    A server with API keys wants one of them in the variable TENURE_API_KEY.
    """
    key = os.environ.get(KEY_VARIABLE)  # no option: others on the machine could read it
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    address = f"{url.rstrip('/')}/fleet"
    try:
        answer = httpx.get(address, headers=headers, timeout=FLEET_TIMEOUT_S)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise Failure(f"{url} wants an API key; set {KEY_VARIABLE} to one of the server's")
        answer.raise_for_status()
        click.echo(fleet_table(answer.json()))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError) as error:
        raise Failure(f"{url} gave no fleet ({error}); is the server running there?") from error


@main.command()
@click.argument("config")
@click.pass_context
def doctor(ctx: click.Context, config: str) -> None:
    """Check whether this machine can run CONFIG; exits with 1 where there is something to do."""
    from deployments.doctor import examine  # late: it needs parts of the server

    healthy = True
    for finding in examine(config):
        click.echo(finding.line)
        healthy = healthy and finding.ok
    ctx.exit(0 if healthy else 1)


def _print_warnings(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


if __name__ == "__main__":
    main()
