"""How a source's prompt is written for the model."""


def fill_template(template: str, prompt: str) -> str:
    """The template with its one `{prompt}` replaced; other braces, as in `\\boxed{}`, are kept."""
    return template.replace("{prompt}", prompt)
