"""Failed episodes for the tests of the failure library and of the samplers."""

from roleagent.types import Completion, Reflection, Task, Trajectory, Turn

TOY = "RoleAgent/Toy-v0"
NOTHING = Completion((), (), "stop", policy_version=7)


def story(*exchanges, goal="put a hot egg 1 on the table", task_id="t1", task_type="heat", env_id=TOY, **options):
    """A trajectory from pairs (command, observation); "Nothing happens." is an invalid one."""
    turns = tuple(
        Turn((), NOTHING, command, text, info={"valid_action": not text.startswith("Nothing"), "won": False})
        for command, text in exchanges
    )
    task = Task(env_id, task_id, "train", goal.replace(" 1 ", " "), task_type)
    first = "You see a drawer 1, a drawer 2, a shelf 1, a stove 1, and a table 1."
    settings = {"terminated": False, "truncated": True, "stop_reason": "max_steps", "initial_observation": first}
    return Trajectory(task, turns, **(settings | options))


def failed(task_id, mode="navigation_loop", task_type="heat", text=""):
    """A failed trajectory and its reflection."""
    trajectory = story(("look", "a kitchen"), task_id=task_id, task_type=task_type)
    return trajectory, Reflection(mode, "detail", 0, text or f"lesson of {mode}", f"{task_type}: {mode} {text}")
