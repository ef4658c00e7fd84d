"""All reference pages, from all makers."""

from __future__ import annotations

from tools.docs import (
    api_pages,
    command_pages,
    error_pages,
    frame_pages,
    key_pages,
    metric_pages,
    script_pages,
    setting_pages,
)

MAKERS = (api_pages, command_pages, setting_pages, error_pages, key_pages, frame_pages, metric_pages, script_pages)


def pages() -> dict[str, str]:
    """Path below `reference/` -> Markdown."""
    return {path: text for maker in MAKERS for path, text in maker.pages().items()}
