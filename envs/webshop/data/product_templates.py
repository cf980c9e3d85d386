"""The products of the generated shop: thirty types in five departments, and the words that describe them.

The words are few, on purpose: a language model that starts from nothing must learn them. No two attributes of a kind,
and no two values of an option, are so alike that the shop's fuzzy comparison would take one for the other.
"""

from __future__ import annotations

from dataclasses import dataclass

COLORS = ("black", "white", "blue", "red", "green", "pink", "gray", "brown")
FITS = ("small", "medium", "large", "plus")
SHOE_SIZES = ("7", "8", "9", "10")
OUNCES = ("2 oz", "4 oz", "8 oz", "16 oz")
SCENTS = ("rose", "lemon", "vanilla", "mint")
FLAVORS = ("honey", "berry", "cocoa", "apple", "ginger")
INCHES = ("14 inch", "20 inch", "36 inch", "58 inch")
FEET = ("3 feet", "6 feet", "10 feet")

GROUPS = {
    "Color": COLORS,
    "Fit": FITS,
    "Shoe": SHOE_SIZES,
    "Ounce": OUNCES,
    "Scent": SCENTS,
    "Flavor": FLAVORS,
    "Inch": INCHES,
    "Feet": FEET,
}
"""The pools of option values. Several of them are shown as ``Size``: see :func:`shown`."""

_BRANDS = """
    Norvik Lumora Tessaly Brindle Oakmere Sunfell Quillan Marrow Havenly Pebblin Corvane Dunmoor
    Elbrook Farrowe Glimmet Hollin Istria Juniva Kestrin Larkend Mossley Nettleby Orrin Pinwell
"""
_SYLLABLES = "bar cen dol fim gor hal jun kel lim mor nav pel quo ras sil tun vex wim yor zan"
BRANDS, SYLLABLES = _BRANDS.split(), _SYLLABLES.split()


@dataclass(frozen=True)
class Ware:
    """One kind of thing.

    Attributes:
        noun: what a title calls it.
        one: how a person asks for it, article included.
        query: the search that finds all of its kind.
        department: the product category of all official goals, e.g. ``garden``.
        path: the rest of its path in the shop, after the department's name.
        groups: pools of its options (keys of :data:`GROUPS`).
        qualities: attributes that stand before the noun.
        parts: attributes that follow a ``with``.
        uses: attributes that follow a ``for``.
        dollars: the cheapest and the dearest.
    """

    noun: str
    one: str
    query: str
    department: str
    path: tuple[str, ...]
    groups: tuple[str, ...]
    qualities: tuple[str, ...]
    parts: tuple[str, ...]
    uses: tuple[str, ...]
    dollars: tuple[int, int]

    @property
    def product_category(self) -> str:
        return " › ".join((DEPARTMENTS[self.department], *self.path))


DEPARTMENTS = {
    "beauty": "Beauty & Personal Care",
    "electronics": "Electronics",
    "fashion": "Clothing, Shoes & Jewelry",
    "garden": "Home & Kitchen",
    "grocery": "Grocery & Gourmet Food",
}


def shown(group: str) -> str:
    """The name that the shop shows for a pool of option values."""
    return group if group in ("Color", "Scent", "Flavor") else "Size"


_SKIN = "cruelty free, paraben free, long lasting, easy apply"
_HAIR = "easy carry, cruelty free, anti static, salon quality"
_CLOTH = "machine washable, quick drying, slim fit, long sleeve"
_CLOTH_BELOW = "machine washable, quick drying, slim fit, high waist"
_SHOE = "light weight, quick drying, water resistant, non slip"
_FABRIC = "machine washable, quick drying, double sided, super soft"
_DEVICE = "fast charging, water resistant, easy install, light weight"
_HOME = "easy clean, space saving, heavy duty, hand crafted"
_FOOD = "gluten free, low sodium, non gmo, dairy free, keto friendly"

# Per department: noun; how to ask for one; query; path; pools of options; qualities; parts; uses; dollars.
_TABLE = {
    "beauty": (
        ("face cream; a face cream; face creams; Skin Care, Face; Ounce Scent", _SKIN),
        ("coconut oil, aloe vera, shea butter; sensitive skin, dry skin, fine lines; 8 60"),
        ("body lotion; a body lotion; body lotions; Skin Care, Body; Ounce Scent", _SKIN),
        ("coconut oil, aloe vera, shea butter; sensitive skin, dry skin, summer days; 6 45"),
        ("lip balm; a lip balm; lip balms; Makeup, Lips; Color Scent", _SKIN),
        ("coconut oil, bees wax, shea butter; dry lips, cold weather, party makeup; 4 35"),
        ("hair brush; a hair brush; hair brushes; Hair Care, Brushes; Color", _HAIR),
        ("wood handle, nylon pins, soft grip; curly hair, thick hair, daily styling; 5 50"),
        ("hair mask; a hair mask; hair masks; Hair Care, Masks; Ounce Scent", _SKIN),
        ("argan extract, coconut oil, silk protein; damaged hair, curly hair, hair growth; 9 55"),
        ("nail polish; a nail polish; nail polishes; Nails, Polish; Color", _SKIN),
        ("glitter finish, matte finish, gel shine; home manicure, party makeup, daily wear; 4 35"),
    ),
    "electronics": (
        ("phone case; a phone case; phone cases; Phones, Cases; Color", _DEVICE),
        ("screen protector, card holder, ring stand; outdoor sports, office work, daily wear; 6 45"),
        ("power bank; a power bank; power banks; Phones, Chargers; Color", _DEVICE),
        ("led display, solar panel, usb port; long travel, outdoor sports, office work; 15 90"),
        ("charging cable; a charging cable; charging cables; Phones, Cables; Color Feet", _DEVICE),
        ("gold plugs, braided cord, led display; car rides, office work, long travel; 5 40"),
        ("wireless speaker; a wireless speaker; wireless speakers; Audio, Speakers; Color", _DEVICE),
        ("deep bass, usb port, remote control; home theater, outdoor sports, pool party; 18 120"),
        ("headphones; a pair of headphones; headphones; Audio, Headphones; Color", _DEVICE),
        ("deep bass, noise filter, ear cushions; gym workout, office work, long travel; 15 110"),
        ("camera tripod; a camera tripod; camera tripods; Cameras, Tripods; Color Inch", _DEVICE),
        ("carrying bag, remote control, phone holder; video calls, long travel, night shots; 16 95"),
    ),
    "fashion": (
        ("hoodie; a hoodie; hoodies; Men, Hoodies; Color Fit", _CLOTH),
        ("zip pockets, fleece lining, drawstring hood; gym workout, cold weather, daily wear; 15 70"),
        ("rain jacket; a rain jacket; rain jackets; Women, Jackets; Color Fit", _CLOTH),
        ("zip pockets, mesh lining, drawstring hood; cold weather, mountain hikes, city walks; 25 110"),
        ("summer dress; a summer dress; summer dresses; Women, Dresses; Color Fit", _CLOTH),
        ("lace trim, elastic waist, side pockets; beach days, daily wear, wedding party; 16 80"),
        ("jeans; a pair of jeans; jeans; Men, Jeans; Color Fit", _CLOTH_BELOW),
        ("button closure, stretch denim, side pockets; office work, daily wear, city walks; 18 90"),
        ("running shoes; a pair of running shoes; running shoes; Shoes, Running; Color Shoe", _SHOE),
        ("rubber sole, memory foam, arch support; gym workout, mountain hikes, daily wear; 24 120"),
        ("wool socks; a pair of wool socks; wool socks; Women, Socks; Color Fit", _FABRIC),
        ("arch support, cushion heel, ribbed cuff; cold weather, mountain hikes, gift giving; 5 35"),
    ),
    "garden": (
        ("desk lamp; a desk lamp; desk lamps; Lighting, Lamps; Color", _HOME),
        ("usb port, wood base, glass shade; home office, living room, bedside reading; 14 85"),
        ("throw pillow; a throw pillow; throw pillows; Bedding, Pillows; Color Inch", _FABRIC),
        ("memory foam, hidden zipper, tassel trim; living room, guest bed, garden chairs; 9 50"),
        ("area rug; an area rug; area rugs; Decor, Rugs; Color Feet", _FABRIC),
        ("rubber backing, jute border, thick pile; living room, dining room, kids bedroom; 22 140"),
        ("storage basket; a storage basket; storage baskets; Storage, Baskets; Color Inch", _HOME),
        ("rope handles, cotton liner, wood lid; laundry days, toy storage, living room; 9 60"),
        ("coffee table; a coffee table; coffee tables; Furniture, Tables; Color Inch", _HOME),
        ("solid wood, metal legs, glass top; living room, home office, small flats; 45 190"),
        ("wall mirror; a wall mirror; wall mirrors; Decor, Mirrors; Color Inch", _HOME),
        ("wood frame, metal frame, led lights; dining room, guest bath, home entry; 18 120"),
    ),
    "grocery": (
        ("granola bar; a granola bar; granola bars; Snacks, Bars; Flavor", _FOOD),
        ("whole oats, sea salt, chia seeds; quick breakfast, school lunch, mountain hikes; 5 40"),
        ("fruit snack; a fruit snack; fruit snacks; Snacks, Fruit; Flavor Ounce", _FOOD),
        ("real juice, added vitamins, cane sugar; school lunch, movie night, gift giving; 4 30"),
        ("herbal tea; an herbal tea; herbal teas; Drinks, Tea; Flavor Ounce", _FOOD),
        ("dried flowers, lemon grass, licorice root; deep sleep, cold weather, gift giving; 5 45"),
        ("ground coffee; a ground coffee; ground coffees; Drinks, Coffee; Flavor Ounce", _FOOD),
        ("dark roast, medium roast, chicory blend; quick breakfast, office work, cold brew; 8 50"),
        ("trail mix; a trail mix; trail mixes; Snacks, Nuts; Flavor Ounce", _FOOD),
        ("sea salt, dried mango, roasted almonds; mountain hikes, movie night, school lunch; 7 45"),
        ("pancake mix; a pancake mix; pancake mixes; Baking, Mixes; Flavor Ounce", _FOOD),
        ("whole oats, chia seeds, cane sugar; quick breakfast, camping trips, family brunch; 5 35"),
    ),
}


def _read(department: str, row: tuple[str, str], rest: str) -> Ware:
    noun, one, query, path, groups = row[0].split("; ")
    parts, uses, dollars = (text.split(", ") for text in rest.split("; "))
    low, high = map(int, dollars[0].split())
    return Ware(
        noun=noun,
        one=one,
        query=query,
        department=department,
        path=(*path.split(", "), query.title()),
        groups=tuple(groups.split()),
        qualities=tuple(row[1].split(", ")),
        parts=tuple(parts),
        uses=tuple(uses),
        dollars=(low, high),
    )


WARES = tuple(
    _read(department, row, rest)  # type: ignore[arg-type]
    for department, table in _TABLE.items()
    for row, rest in zip(table[::2], table[1::2], strict=True)
)

__all__ = ["BRANDS", "GROUPS", "SYLLABLES", "WARES", "Ware", "shown"]
