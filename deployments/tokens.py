"""How much a job read and drew, in OpenAI's unit.

Text is counted by the pipeline's own tokenizer, pictures in positions of its latents. Knows no
torch; a tokenizer is whatever turns text into ids.
"""

import io
from typing import Any

from PIL import Image

from deployments.messages import GenerateJob


def count_tokens(job: GenerateJob, tokenizer: Any, num_positions: int) -> dict[str, int]:
    """``num_positions``: of the latents of one picture of the job's size."""
    texts = [text for text in (job.prompt, job.negative_prompt) if text]
    return {
        "text": sum(_num_ids(text, tokenizer) for text in texts) if tokenizer else 0,
        "image": sum(_positions(data, job, num_positions) for data in job.inputs),
        "output": num_positions * job.images,
    }


def _num_ids(text: str, tokenizer: Any) -> int:
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def _positions(data: bytes, job: GenerateJob, num_positions: int) -> int:
    """Of a picture that is read: as many as its pixels would make of the picture drawn."""
    with Image.open(io.BytesIO(data)) as image:
        return round(num_positions * image.width * image.height / (job.width * job.height))
