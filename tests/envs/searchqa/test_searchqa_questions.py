"""Published questions in their forms, bad lines, and splits that share nothing."""

import json
import lzma
import re
import shutil
import sys

import pytest
from shared_data import shared_data

from roleagent.envs.searchqa.data.benchmarks import DATA_SETS, load_questions, read_questions
from roleagent.envs.searchqa.data.questions import SAMPLE, Question, QuestionError, split
from roleagent.envs.searchqa.env import SearchQAEnv


@pytest.fixture(scope="session")
def real_questions():
    """The folder with 500 questions of each of the seven data sets (125 of Bamboogle)."""
    return shared_data("qa", "real questions")


def row(number, question=None, answers=("x",), **more):
    return {"id": number, "question": question or f"question {number}", "golden_answers": list(answers), **more}


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
    return path


def ids(questions):
    return [question.task_id for question in questions]


# --- JSON lines -------------------------------------------------------------------------------------------------------


def test_a_line_becomes_a_question(tmp_path):
    path = write(
        tmp_path / "nq.jsonl",
        row("0", " who sang it ", ["A", "B"], golden_context=["T\n text", ""]),
        "",
        {"id": "test_1", "question": "What?", "golden_answers": "alone"},
        row(2, "half \ud800 a pair", extra=1),
    )
    first, second, third = read_questions(path, "nq")
    assert first == Question("nq", "test_0", "who sang it?", ("A", "B"), ("T\n text",))
    assert second == Question("nq", "test_1", "What?", ("alone",), ())
    assert (third.task_id, third.text) == ("nq/test_2", "half ? a pair?")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        (b"\xff\xfe", "no JSON"),
        ("[1]", "an object, not a list"),
        ('{"question": "Who?", "golden_answers": ["x"]}', "'index' is missing"),
        ('{"id": "1", "golden_answers": ["x"]}', "'prompt' is missing"),
        ('{"id": "1", "question": "  ", "golden_answers": ["x"]}', "question must be a text, not '  '"),
        ('{"id": "1", "question": 5, "golden_answers": ["x"]}', "question must be a text, not 5"),
        ('{"id": "1", "question": "Who?"}', "golden_answers must be a list of texts, at least one, not None"),
        ('{"id": "1", "question": "Who?", "golden_answers": []}', r"at least one, not \[\]"),
        ('{"id": "1", "question": "Who?", "golden_answers": ["x", 3]}', "must be a list of texts"),
        ('{"id": "1", "question": "Who?", "golden_answers": [""]}', "must be a list of texts"),
        ('{"id": "1", "question": "Who?", "golden_answers": ["x"], "extra_info": [1]}', "has no attribute"),
        ('{"id": "1", "question": "Who?", "golden_answers": ["x"], "golden_context": [4]}', "has no attribute"),
        ('{"id": "1", "question": "Who?", "golden_answers": ["x"], "data_source": "train"}', "must name the data set"),
        ('{"id": "0", "question": "Who?", "golden_answers": ["x"]}', "'test_0' occurs twice in nq"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, line, reason):
    path = write(tmp_path / "nq.jsonl", row("0"), "")
    path.write_bytes(path.read_bytes() + (line if isinstance(line, bytes) else line.encode()))
    with pytest.raises(QuestionError, match=rf"nq\.jsonl, line 3: .*{reason}") as error:
        read_questions(path, "nq")
    assert "\n" not in str(error.value)


# --- Parquet ----------------------------------------------------------------------------------------------------------

PROMPT = "Answer the given question. For example, <answer> Beijing </answer>. Question: {}\n"


def published_row(index, source="nq", part="train", **more):
    """A row as Search-R1 publishes it."""
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": PROMPT.format(f"who is number {index}?")}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": [f"answer {index}", "other"]}},
        "extra_info": {"split": part, "index": index},
        **more,
    }


def write_parquet(path, rows):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.Table.from_pylist(rows), path)
    return path


def test_parquet_rows(tmp_path):
    path = write_parquet(tmp_path / "train.parquet", [published_row(7), published_row(8, "searchR1_hotpotqa")])
    assert read_questions(path) == (
        Question("nq", "train_7", "who is number 7?", ("answer 7", "other")),
        Question("hotpotqa", "train_8", "who is number 8?", ("answer 8", "other")),
    )
    own_columns = [published_row(1, id="test_1", question="plainly", golden_answers=["gold"])]
    question = read_questions(write_parquet(tmp_path / "test.parquet", own_columns))[0]
    assert (question.task_id, question.text, question.answers) == ("nq/test_1", "plainly?", ("gold",))


# --- folders and splits -----------------------------------------------------------------------------------------------


def test_parquet_that_cannot_be_read(tmp_path, monkeypatch):
    no_target = published_row(1, reward_model={"ground_truth": {"target": []}})
    bad_row = write_parquet(tmp_path / "row" / "test.parquet", [published_row(0), no_target])
    no_parquet = write(tmp_path / "none" / "train.parquet", "no parquet at all")
    for path, message in (
        (bad_row, r"test\.parquet, row 2: golden_answers"),
        (no_parquet, "cannot be read as Parquet"),
        (None, r"pip install 'roleagent\[parquet\]'"),
    ):
        if path is None:
            monkeypatch.setitem(sys.modules, "pyarrow", None)
            monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(QuestionError, match=message) as error:
            read_questions(path) if path else load_questions(no_parquet.parent)
        assert "\n" not in str(error.value)


def test_training_is_nq_and_hotpotqa(tmp_path):
    for name in ("nq_train", "hotpotqa/train", "triviaqa_train", "nq/test", "hotpotqa/dev", "2wiki", "popqa_test"):
        write(tmp_path / f"{name}.jsonl", *(row(f"{n}", f"{name} {n}") for n in range(40)))
    found = load_questions(tmp_path)
    assert {question.data_set for question in found["train"]} == {"nq", "hotpotqa"}
    assert len(found["train"]) == 72 and len(found["valid"]) == 8  # a tenth is held out
    parts = {"nq": "test", "popqa": "test", "hotpotqa": "dev", "2wikimultihopqa": "test"}
    assert sorted(ids(found["test"])) == sorted(f"{name}/{part}_{n}" for name, part in parts.items() for n in range(40))
    assert list(found) == [*("train", "valid", "test", "test_sample"), *("nq", "popqa", "hotpotqa", "2wikimultihopqa")]
    assert len(found.task_split("2wikimultihopqa")) == 40


def asked(n, data_set="nq", part="train", text="question {}?"):
    return [Question(data_set, f"{part}_{number}", text.format(number), ("x",)) for number in range(n)]


def test_test_questions_are_not_in_training():
    train = [*asked(30), Question("nq", "train_again", "Question, 3!", ("x",))]
    test = asked(5, part="test")  # the same words as the first five
    found = split(train, [], test)
    texts = [{question.text for question in found[part]} for part in ("train", "valid", "test")]
    assert not texts[0] & texts[1] and not texts[0] & texts[2] and not texts[1] & texts[2]
    assert len(found["train"]) + len(found["valid"]) == 25 and len(found["valid"]) == 2


def test_a_missing_folder_split_or_corpus(tmp_path, monkeypatch):
    for folder in (tmp_path / "nowhere", tmp_path):
        for options in ({"data_dir": folder}, {}):
            monkeypatch.setenv("SEARCHQA_DATA", str(folder))
            with pytest.raises(QuestionError, match=re.escape(str(folder))) as error:
                SearchQAEnv(**options)
            assert "\n" not in str(error.value)
    write(tmp_path / "nq.jsonl", row("0"))
    with pytest.raises(QuestionError, match=r"no passages in .*corpus\.jsonl.*corpus="):
        SearchQAEnv(data_dir=tmp_path)
    write(tmp_path / "corpus.jsonl", {"id": "0", "contents": '"T"\ntext'})
    with pytest.raises(QuestionError, match=r"no split 'train' of .* there are test, test_sample, nq; .*nq_train"):
        SearchQAEnv(data_dir=tmp_path)
    write(tmp_path / "bad.jsonl", {"id": "0", "contents": '"T"\ntext'}, "{")
    with pytest.raises(QuestionError, match=r"bad\.jsonl, line 2"):
        SearchQAEnv(split="test", data_dir=tmp_path, corpus=tmp_path / "bad.jsonl")
    for own in ({"index": "dense"}, {"corpus": "corpus.jsonl"}):
        with pytest.raises(QuestionError, match=r"the server http://127\.0\.0\.1:1 has passages and an index"):
            SearchQAEnv(split="test", data_dir=tmp_path, retriever="http://127.0.0.1:1", **own)


# --- the real ones ----------------------------------------------------------------------------------------------------


def test_the_real_questions(real_questions):
    found = load_questions(real_questions)
    assert {name: len(found[name]) for name in DATA_SETS} == {**dict.fromkeys(DATA_SETS, 500), "bamboogle": 125}
    assert len(found["test"]) == 3125 and len(found["test_sample"]) == 7 * SAMPLE and "train" not in found
    assert all(question.text.endswith("?") and question.answers for question in found["test"])
    assert all(len(question.context) >= 2 for question in found["hotpotqa"])
    assert {question.data_set for question in found["test"][:20]} == set(DATA_SETS)
    first = [int(question.number.removeprefix("test_")) for question in found["nq"][:50]]
    assert 150 < sum(first) / 50 < 350  # not the first of the file, which may be the easy ones


@pytest.mark.slow
def test_bamboogle_is_played_with_its_passages(real_questions, tmp_path):
    """All 125 questions: a search finds passages, the published answer wins, and another one does not."""
    corpus = tmp_path / "corpus.jsonl"
    with lzma.open(real_questions / "wiki18_subset_corpus.jsonl.xz") as packed, corpus.open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    env = SearchQAEnv(split="bamboogle", data_dir=real_questions, corpus=corpus)
    questions = {question.task_id: question for question in load_questions(real_questions)["bamboogle"]}
    assert set(env.task_split.task_ids) == set(questions) and len(questions) == 125
    for task_id, question in questions.items():
        for answer in (question.answers[0], "no such thing"):
            observation, _ = env.reset(options={"task_id": task_id})
            assert question.text in observation
            found, *_ = env.step(f"search[{question.text}]")
            assert "Doc 1(Title: " in found
            *_, ended, _, info = env.step(f"answer[{answer}]")
            assert ended and info["won"] == (answer == question.answers[0])
