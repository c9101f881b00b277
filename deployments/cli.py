"""The ``tenure`` command: draw, plan, look at a fleet, and check a machine.

Reads arguments and prints; each command's work is done elsewhere. Importing this imports no torch.
"""

import json
import secrets
from pathlib import Path
from typing import Any

import click
import httpx

from deployments.card_choice import card_facts, open_card
from deployments.config import AppConfig, parse_size
from deployments.drawing import Drawing, draw
from deployments.errors import TenureError
from deployments.foresight import foresee, survey_model
from deployments.images import encode_png
from deployments.messages import GenerateJob
from deployments.progress import ProgressBar
from deployments.serve_file import read_serve_file
from deployments.tables import fleet_table, plan_table
from deployments.version import version
from offload import DoesNotFitError, OffloadError, explain, format_bytes

DEFAULT_SEEDS = 1 << 31
FLEET_TIMEOUT_S = 10.0
DOES_NOT_FIT, FAILED = 1, 2  # exit codes beside 0

CARD = click.option("--card", help="A simulated card of the file, or a size such as 24GiB.")


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
@click.argument("config")
@CARD
@click.option("--json", "as_json", is_flag=True, help="For a program to read.")
@click.pass_context
def plan(ctx: click.Context, config: str, card: str | None, as_json: bool) -> None:
    """Show what would stay on the card, and why. Exits with 1 where the wish does not fit."""
    app = read_serve_file(config).config
    foresight = foresee(app, survey_model(app), card_facts(app.cards, card))
    found = foresight.to_dict()
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo(f"{foresight.card.name}, {format_bytes(foresight.card.free_bytes)} free\n")
        click.echo(f"{plan_table(found['components'])}\n")
        click.echo(explain(foresight.plan, foresight.facts))
    ctx.exit(0 if foresight.wish_fits else DOES_NOT_FIT)


@main.command()
@click.argument("url")
def fleet(url: str) -> None:
    """Show the replicas of a running server, such as http://127.0.0.1:8000."""
    try:
        answer = httpx.get(f"{url.rstrip('/')}/fleet", timeout=FLEET_TIMEOUT_S).raise_for_status()
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
