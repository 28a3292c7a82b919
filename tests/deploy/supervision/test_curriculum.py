from pathlib import Path

from deploy.supervision.curriculum import EPISODES, Curriculum


def record(level: float, episodes: float, successes: float, levels: float = 3) -> dict[str, float]:
    return {"levels": levels, "level": level, "level_episodes": episodes, "level_successes": successes}


def test_the_level_rises_when_all_actors_together_mostly_succeed(tmp_path: Path) -> None:
    curriculum = Curriculum(tmp_path / "curriculum.json")
    assert curriculum.on_record("actor-0", record(0, EPISODES - 1, EPISODES - 1)) == ""
    line = curriculum.on_record("actor-1", record(0, 10, 10))
    assert curriculum.level == 1 and "level 2 of 3" in line and "100%" in line


def test_it_stays_where_they_do_not_and_forgets_how_bad_they_were(tmp_path: Path) -> None:
    curriculum = Curriculum(tmp_path / "curriculum.json")
    for round in range(1, 9):
        curriculum.on_record("actor-0", record(0, round * EPISODES, 0))
    assert curriculum.level == 0
    for good in range(1, 9):  # cumulative success is half at the end, the recent one is whole
        curriculum.on_record("actor-0", record(0, (8 + good) * EPISODES, good * EPISODES))
        if curriculum.level:
            return
    raise AssertionError("it never forgot")


def test_episodes_of_another_level_count_nothing(tmp_path: Path) -> None:
    curriculum = Curriculum(tmp_path / "curriculum.json")
    curriculum.on_record("actor-0", record(1, 10 * EPISODES, 10 * EPISODES))
    assert curriculum.level == 0 and curriculum.success_rate is None


def test_the_last_level_is_the_last(tmp_path: Path) -> None:
    curriculum = Curriculum(tmp_path / "curriculum.json")
    for level in range(5):
        curriculum.on_record("actor-0", record(min(level, 2), EPISODES, EPISODES))
    assert curriculum.level == 2


def test_an_actor_that_starts_again_is_not_counted_backwards(tmp_path: Path) -> None:
    curriculum = Curriculum(tmp_path / "curriculum.json")
    curriculum.on_record("actor-0", record(0, 150, 150))
    curriculum.on_record("actor-0", record(0, 10, 10))
    assert curriculum.success_rate == 1.0 and curriculum.level == 0
    curriculum.on_record("actor-0", record(0, 50, 50))
    assert curriculum.level == 1


def test_it_goes_on_where_it_was_and_a_damaged_file_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "curriculum.json"
    Curriculum(path).on_record("actor-0", record(0, EPISODES, EPISODES))
    assert Curriculum(path).level == 1
    path.write_text("{")
    assert Curriculum(path).level == 0


def test_without_levels_there_is_none(tmp_path: Path) -> None:
    curriculum = Curriculum(tmp_path / "curriculum.json")
    assert curriculum.on_record("actor-0", {"episodes": 1e6}) == "" and curriculum.levels == 0
