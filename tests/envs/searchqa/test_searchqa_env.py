"""``RoleAgent/SearchQA-v0``: answers and passages, retrieval that fails, predictions that count."""

from importlib.util import find_spec

import gymnasium
import pytest

from roleagent.envs.pool import EnvPool
from roleagent.envs.retrieval.passages import Passage, RetrievalError
from roleagent.envs.retrieval.retriever import Hit
from roleagent.envs.searchqa.data.dataset import Archive
from roleagent.envs.searchqa.data.questions import SPLITS
from roleagent.envs.searchqa.env import ANSWERED, WORDS, present
from roleagent.envs.searchqa.text import read_information
from roleagent.envs.wrappers import Tags


def make(**options):
    return gymnasium.make("RoleAgent/SearchQA-v0", **options)


class Engine:
    """A search engine that remembers what it was asked and does what it is told."""

    name = "engine"

    def __init__(self, find):
        self.find, self.asked = find, []

    def retrieve(self, queries, k=3):
        self.asked += queries
        return [self.find(query)[:k] for query in queries]


def fail(query):
    raise RetrievalError("http://localhost:1/retrieve: no answer after 3 tries; is the server up?")


def with_engine(find, **options):
    """An environment of the generated questions with a search engine of its own."""
    env = make(**options)
    env.unwrapped.archive = Archive(env.unwrapped.archive.questions, Engine(find))
    return env


# --- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
def test_info_from_reset_to_the_answer(split):
    env = make(split=split)
    passages = {hit.passage.id: hit.passage for hit in env.unwrapped.archive.search("Hidden Harbor", 9)}
    for task_id in env.unwrapped.task_split.task_ids[:20]:
        text, info = env.reset(options={"task_id": task_id})
        assert info["question_id"] == task_id == f"{info['task_type']}/{task_id.split('/')[1]}"
        assert "search[query]" in text and "answer[text]" in text
        *searches, answer = env.unwrapped.walkthrough()
        for command in searches:
            text, *_, info = env.step(command)
            documents = read_information(text)
            assert command.removeprefix("search[").removesuffix("]") in [document.title for document in documents]
            assert len(info["retrieved"]) == len(documents) == 3 and info["golden_answers"] == []
            assert text.startswith(f'<information>Doc 1(Title: "{documents[0].title}") ')
            for found, document in zip(info["retrieved"], documents, strict=True):
                assert found not in passages or passages[found].title == document.title
        text, *_, info = env.step(answer)
        assert (text, info["state"], info["retrieved"], info["em"], info["f1"], info["sub_em"]) == (
            *(ANSWERED, None, []),
            *(1, 1, 1),
        )
        assert info["golden_answers"] == [info["answer"]] == [answer.removeprefix("answer[").removesuffix("]")]


def test_a_wrong_answer_ends_the_episode_and_keeps_its_scores():
    env = make()
    _, info = env.reset(seed=3)
    right = env.unwrapped.walkthrough()[-1].removeprefix("answer[").removesuffix("]")
    text, reward, terminated, truncated, info = env.step(f"answer[it is {right}]")
    assert (text, reward, terminated, truncated, info["won"]) == (ANSWERED, 0, True, False, False)
    assert info["em"] == 0 < info["f1"] < info["sub_em"] == 1 and info["state"] is None
    assert info["answer"] == f"it is {right}" and info["golden_answers"] == [right] and info["rewards"] == {"task": 0}


# --- what is shown ----------------------------------------------------------------------------------------------------


def passages(*texts):
    return [Hit(Passage(str(number), f"Title {number}", text), 1.0) for number, text in enumerate(texts)]


def test_observations_have_a_budget_that_passages_share():
    long = "word " * 1000
    text = present(passages(long, long, long))
    assert len(text.split()) <= WORDS and text.count("Title: ") == 3
    lengths = [len(document.text.split()) for document in read_information(text)]
    assert len(set(lengths)) == 1 and lengths[0] > 100
    assert len(present(passages(long)).split()) == WORDS
    # 3 words are about 4 tokens: the budget is 500 tokens
    assert WORDS * 4 / 3 == 500


# --- the search engine ------------------------------------------------------------------------------------------------


def test_the_pool_reports_a_failed_search_and_replaces_the_environment():
    broken = with_engine(fail)
    engines = iter([Tags(broken), Tags(with_engine(lambda query: passages("found")))])
    pool = EnvPool(lambda: next(engines), 1)
    assert pool.reset(0).error is None
    outcome = pool.step(0, "<search>Old Wex</search>")
    reason, _, place = outcome.error.partition(" (")
    assert reason == "RetrievalError: http://localhost:1/retrieve: no answer after 3 tries; is the server up?"
    assert place.startswith(__file__)  # of the retriever, which is not ours
    assert outcome.observation == "" and outcome.reward == 0.0 and len(pool) == 0
    assert len(broken.unwrapped.archive._found) == 0  # it is asked again next time
    assert pool.reset(0).error is None
    assert "found" in pool.step(0, "<search>Old Wex</search>").observation


# --- replies and predictions ------------------------------------------------------------------------------------------


def test_answers_in_passages_are_not_judged():
    """A passage that holds an answer in tags answers nothing."""
    env = Tags(with_engine(lambda query: passages("For example, <answer>Beijing</answer>")))
    env.reset(seed=0)
    text, reward, terminated, *_ = env.step("<search>Beijing</search>")
    assert "<answer>Beijing</answer>" in text and (reward, terminated) == (0, False)


def test_pyserini_is_called_as_in_webshop():
    """It was `lucene` here, and `pyserini` was taken for an encoder."""
    arguments = {"data_dir": "generated", "retriever": "pyserini"}
    if find_spec("pyserini") is None:
        with pytest.raises(gymnasium.error.DependencyNotInstalled, match=r"pip install 'roleagent\[pyserini\]'"):
            gymnasium.make("RoleAgent/SearchQA-v0", **arguments)
        pytest.skip("needs the extra [pyserini]")
    env = gymnasium.make("RoleAgent/SearchQA-v0", **arguments)
    _, info = env.reset(seed=0)
    assert read_information(env.step(f"search[{info['goal']}]")[0])
