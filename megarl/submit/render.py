"""A job as a batch script."""

from pathlib import Path

import jinja2

from megarl.submit.job import Job
from megarl.submit.profile import Profile, ProfileError
from megarl.submit.shell import finalize


def render(job: Job, profile: Profile, templates: Path) -> str:
    """The text of the script.

    Args:
        job: what it runs.
        profile: how; its layout names the template.
        templates: folder of the templates.

    Raises:
        ProfileError: the folder has no such template, or the template is wrong.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        # whatever a template prints is one word of the shell, also where its author did not think of it
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    name = f"{profile.layout}.sbatch.j2"
    try:
        return environment.get_template(name).render(job=job, profile=profile)
    except jinja2.TemplateNotFound as error:
        raise ProfileError(
            f"templates={profile.templates} has no file {error.name} in {templates}; name the folder that has it."
        ) from error
    except jinja2.TemplateError as error:
        raise ProfileError(f"The template {templates / name} cannot be used: {error}; mend it.") from error
