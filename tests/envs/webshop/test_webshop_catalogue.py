"""The catalogue: what official entries become, which files are read, and what bad data says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.envs.webshop.data import json_stream
from roleagent.envs.webshop.data.catalogue import CatalogueError
from roleagent.envs.webshop.data.official import find_files
from roleagent.envs.webshop.data.product import NotAProduct, Product, clean
from roleagent.envs.webshop.data.sources import load_catalogue

ENTRY = {
    "asin": "B000000001",
    "name": "Oak Table",
    "full_description": "A table.",
    "small_description": ["Solid.", "Heavy."],
    "pricing": "$14.95",
    "customization_options": {"Color": [{"value": " Light/Dark "}, {"value": "RED"}], "Size": None},
    "category": "garden",
    "product_category": "Home › Tables",
    "query": " Tables ",
    "images": ["a.jpg"],
}
NOTES = {"attributes": ["solid wood"], "instruction": "Find me tables", "instruction_attributes": ["solid wood"]}


def write(folder, entries=(ENTRY,), notes=None, human=None, number=""):
    folder.mkdir(exist_ok=True)
    notes = {ENTRY["asin"]: NOTES} if notes is None else notes
    (folder / f"items_shuffle{number}.json").write_text(json.dumps(entries))
    (folder / f"items_ins_v2{number}.json").write_text(json.dumps(notes))
    if human is not None:
        (folder / "items_human_ins.json").write_text(json.dumps(human))
    return folder


# --- one entry --------------------------------------------------------------------------------------------------------


def test_an_entry_becomes_a_product():
    human = [{"instruction": "a table", "instruction_attributes": ["solid wood"], "instruction_options": ["red"]}]
    product = clean(ENTRY, NOTES, human)
    assert product == Product(
        asin="B000000001",
        title="Oak Table",
        description="A table.",
        bullets=("Solid.", "Heavy."),
        category="garden",
        product_category="Home › Tables",
        query="tables",
        options={"color": ("light | dark", "red")},
        attributes=("solid wood",),
        prices=(14.95,),
        instruction="Find me tables",
        instruction_attributes=("solid wood",),
        human=tuple(human),
    )
    assert product.price_tag == "$14.95"
    assert product.document == "oak table a table. solid. color: light | dark, red"


PRICES = {
    **{"$877.80": (877.8,), "$1,014.95": (1014.95,), "$14.98 - $17.98": (14.98, 17.98), "$1.00$2.00$3.00": (1.0, 2.0)},
    **dict.fromkeys(("", None, "free", "$", "$1.2.3", "$" + "9" * 400, True), (100.0,)),
    12.5: (12.5,),
}


def test_prices():
    for pricing, prices in PRICES.items():
        product = clean(ENTRY | {"pricing": pricing})
        assert product.prices == prices
        assert product.price_tag == " to ".join(f"${price}" for price in prices)
    assert clean(ENTRY | {"pricing": ["$3"]}).prices == (100.0,)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MANGLED = st.fixed_dictionaries({}, optional={key: JSON for key in ENTRY})


@given(entry=JSON | MANGLED.map(lambda changes: ENTRY | changes), notes=JSON, human=JSON)
def test_any_entry_is_a_product_or_an_error(entry, notes, human):
    try:
        product = clean(entry, notes, human)
    except NotAProduct:
        return
    assert Product.from_row(json.loads(json.dumps(product.row()))) == product
    assert isinstance(product.document, str)
    assert product.price_tag.startswith("$")
    assert product.combinations >= 0


# --- a stream of JSON -------------------------------------------------------------------------------------------------


@given(values=st.lists(JSON, max_size=5), chunk=st.integers(1, 40), indent=st.sampled_from([None, 2]))
def test_lists_and_objects_are_read_as_json_reads_them(tmp_path_factory, values, chunk, indent):
    path = tmp_path_factory.mktemp("stream") / "list.json"
    path.write_text(json.dumps(values, indent=indent, ensure_ascii=False), encoding="utf-8", errors="surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "CHUNK", chunk)
        try:
            expected = json.loads(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            with pytest.raises(CatalogueError, match="not UTF-8"):
                list(json_stream.elements(path))
            return
        found = list(json_stream.elements(path))
        assert repr([value for _, value in found]) == repr(expected)  # repr: nan is not nan
        for number, (offset, _) in enumerate(found):
            assert repr(list(json_stream.elements(path, offset))) == repr(found[number + 1 :])
        members = {str(number): value for number, value in enumerate(expected)}
        path.write_text(json.dumps(members))
        assert repr({key: value for _, key, value in json_stream.members(path)}) == repr(members)


def test_broken_lists(tmp_path):
    whole = json.dumps([ENTRY, {"asin": "é", "n": 12}], ensure_ascii=False).encode()
    broken = [whole[:length] for length in range(0, len(whole), 3)]  # every beginning of a file is broken
    broken += [
        b"{}",
        b"null",
        b"[1 2]",
        b"[1,]",
        b"[,]",
        b"[1]]",
        b"[1] x",
        b'["\\x"]',
        b"[" * 99999,
        b"[" + b"9" * 5000,
    ]
    path = tmp_path / "list.json"
    for text in broken:
        path.write_bytes(text)
        with pytest.raises(CatalogueError, match=r"list\.json: broken JSON at byte \d+ \(") as error:
            list(json_stream.elements(path))
        assert "\n" not in str(error.value)
    path.write_bytes(b"\xef\xbb\xbf [1]\n")  # a byte order mark is no error
    assert list(json_stream.elements(path)) == [(6, 1)]


# --- the files --------------------------------------------------------------------------------------------------------


def test_the_smallest_file_with_enough_products_is_taken(tmp_path, webshop_data):
    for number in ("_10", "_1000"):
        write(tmp_path, number=number)
    with pytest.raises(CatalogueError, match=r"items_shuffle_10\.json.*hold fewer than num_products=1001"):
        find_files(tmp_path, 1001)
    write(tmp_path)
    names = {n: find_files(tmp_path, n).items.name for n in (5, 10, 11, 1000, 5000)}
    small, large = "items_shuffle_10.json", "items_shuffle_1000.json"
    assert names == {5: small, 10: small, 11: large, 1000: large, 5000: "items_shuffle.json"}
    assert find_files(tmp_path, 11).notes.name == "items_ins_v2_1000.json"
    assert find_files(tmp_path / "items_shuffle_10.json").notes.name == "items_ins_v2_10.json"
    with pytest.raises(CatalogueError, match=r"say which by num_products, or by the file's path as data_dir"):
        find_files(tmp_path)
    files = find_files(webshop_data)
    assert [files.items.name, files.notes.name, files.human.name] == [
        *("items_shuffle_1000.reconstructed.json", "items_ins_v2_1000.json", "items_human_ins.subset13.json")
    ]


def test_missing_files(tmp_path):
    with pytest.raises(CatalogueError, match="does not exist"):
        load_catalogue(tmp_path / "nowhere")
    with pytest.raises(CatalogueError, match=r"no items_shuffle\*\.json in"):
        load_catalogue(tmp_path)
    folder = write(tmp_path / "data")
    (folder / "items_ins_v2.json").unlink()
    with pytest.raises(CatalogueError, match=r"no items_ins_v2\*\.json in .* belongs to items_shuffle\.json"):
        load_catalogue(folder)
    for number in (1, 2):
        (folder / f"items_ins_v2_{number}.json").write_text("{}")
    with pytest.raises(CatalogueError, match=r"none clearly that of items_shuffle\.json"):
        load_catalogue(folder)


# --- a catalogue ------------------------------------------------------------------------------------------------------


def test_bad_entries_are_left_out_and_counted(tmp_path):
    other = ENTRY | {"asin": "B000000002"}
    bad = [7, {"asin": "nan"}, {"asin": "B0000000001"}, ENTRY, {"asin": "B3", "name": []}]
    data = write(tmp_path, [ENTRY, *bad, other], human={"B000000002": "no list"})
    catalogue = load_catalogue(data)
    assert list(catalogue.asins) == ["B000000001", "B000000002"]
    assert catalogue.skipped == {
        "no object": 1,
        "no asin": 1,
        "asin longer than 10 characters": 1,
        "asin seen before": 1,
        "name is no text": 1,
    }
    assert catalogue[1].attributes == ("DUMMY_ATTR",)
    assert catalogue[1].human == ()
    for entries in ([], bad[1:3]):
        with pytest.raises(CatalogueError, match="holds no product that can be sold"):
            load_catalogue(write(tmp_path / f"{len(entries)}", entries))
    # As in the original, the number counts entries of the file, the bad ones among them.
    assert list(load_catalogue(data, num_products=6).asins) == ["B000000001"]
