"""Tokens: text by the pipeline's tokenizer, pictures by positions of its latents."""

import io

from PIL import Image

from deployments.messages import GenerateJob
from deployments.tokens import count_tokens


def words(text, add_special_tokens=True):
    """A tokenizer of whole words, that would frame them."""
    return {"input_ids": [0] * add_special_tokens + text.split()}


def job(**changes) -> GenerateJob:
    values = {"request_id": "r", "width": 64, "height": 64, "steps": 4, "seed": 1}
    return GenerateJob(**{**values, "prompt": "a red circle", **changes})


def png(width, height) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, format="PNG")
    return buffer.getvalue()


def test_words_are_counted_without_the_frame_and_pictures_each():
    assert count_tokens(job(images=3), words, 16) == {"text": 3, "image": 0, "output": 48}
    assert count_tokens(job(negative_prompt="blue"), words, 16)["text"] == 4


def test_a_picture_that_is_read_counts_by_its_pixels():
    found = count_tokens(job(inputs=(png(64, 64), png(32, 64))), words, 16)
    assert found["image"] == 16 + 8


def test_a_pipeline_without_a_tokenizer_counts_no_text():
    assert count_tokens(job(), None, 16)["text"] == 0
