"""Folders that a run cannot use, and the lock on the one that it does."""

import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from megarl.config.errors import RunFolderError
from megarl.config.schema import Recipe
from megarl.loop.folder import check_folder, claim_folder, writing_to

NEED_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="no /proc")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a file and a link to nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "circle").symlink_to("circle")
    return tmp_path


@pytest.mark.parametrize(
    ("output_dir", "words"),
    [
        ("file", "output_dir=file is a file; name another folder."),
        ("file/x", 'output_dir="file/x" is below file, which is no folder; name another folder.'),
        ("file/x/y", "is below file, which is no folder"),
        ("dangling", "cannot be used (No such file or directory)"),
        ("dangling/x", "cannot be used (No such file or directory)"),
        ("circle/x", "cannot be used (Too many levels of symbolic links)"),
        ("a\0b", "cannot be used (embedded null byte)"),
        ("\ud800", "cannot be used ("),
        ("n" * 300, "cannot be used (File name too long)"),
        ("new/" + "n" * 300, "has a name of more than 255 bytes"),
        ("a/" * 3000, "cannot be used (File name too long)"),
        ("a/" * 1950, "leaves no 255 bytes for the names of files in it"),
        pytest.param("/proc/x", "cannot be used (No such file or directory)", marks=NEED_LINUX),
        pytest.param("/proc/x/y", "cannot be used (No such file or directory)", marks=NEED_LINUX),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_unusable_folders_are_refused(here: Path, output_dir: str, words: str) -> None:
    before = sorted(os.listdir(here))
    with pytest.raises(RunFolderError) as caught:
        check_folder(Recipe(output_dir=output_dir))
    message = str(caught.value)
    assert words in message
    assert message.startswith("output_dir=")
    assert "\n" not in message
    assert sorted(os.listdir(here)) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
@pytest.mark.parametrize("output_dir", ["closed", "closed/x"])
def test_closed_folders_are_refused(here: Path, output_dir: str) -> None:
    (here / "closed").mkdir(mode=0o500)
    with pytest.raises(RunFolderError, match="closed"):
        check_folder(Recipe(output_dir=output_dir))


@pytest.mark.parametrize("output_dir", ["new", "new/" * 3, "a/" * 300, "folder", "link"], ids=lambda value: value[:8])
def test_usable_folders_are_claimed(here: Path, output_dir: str) -> None:
    (here / "folder").mkdir()
    (here / "link").symlink_to("folder")
    recipe = Recipe(output_dir=output_dir)
    before = sorted(os.listdir(here))
    check_folder(recipe)
    assert sorted(os.listdir(here)) == before
    claim_folder(recipe, {}).close()
    assert (Path(output_dir) / "run.json").is_file()
    check_folder(recipe)


def claim(recipe: Recipe, answers: "multiprocessing.SimpleQueue[str]") -> None:
    """Claims in another process and tells how that went."""
    try:
        claim_folder(recipe, {}).close()
        answers.put("claimed")
    except RunFolderError as error:
        answers.put(str(error))


def claimed_elsewhere(recipe: Recipe) -> str:
    """What another process is told that claims the folder."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=claim, args=(recipe, answers))
    process.start()
    process.join(timeout=60)
    assert process.exitcode == 0
    return str(answers.get())


def test_one_process_has_the_folder() -> None:
    recipe = Recipe(output_dir="run")
    lock = claim_folder(recipe, {})
    assert "in use by another process" in claimed_elsewhere(recipe)
    lock.close()
    assert claimed_elsewhere(recipe) == "claimed"


def test_a_forked_child_does_not_keep_the_folder() -> None:
    recipe = Recipe(output_dir="run")
    lock = claim_folder(recipe, {})
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    lock.close()
    try:
        assert claimed_elsewhere(recipe) == "claimed"
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        os.close(reader)


@NEED_LINUX
def test_a_folder_that_takes_no_more_is_told() -> None:
    with (
        pytest.raises(
            RunFolderError, match=r"output_dir=run did not take the log \(No space left on device\); make room"
        ),
        writing_to("run", "the log"),
        open("/dev/full", "w") as full,
    ):
        full.write("x")
