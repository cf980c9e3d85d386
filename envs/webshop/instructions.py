"""The instructions of WebShop: the task, the wording of commands, and an example with a made-up task."""

from roleagent.env_card import CommandForm, ExampleStep, Instructions

INSTRUCTIONS = Instructions(
    """\
You shop on a web site for somebody, whose wish stands on every page behind "Instruction:". The parts of a page are \
divided by [SEP]. Commands:
search[words] – searches for products; a few words that name the product work best, without the price
click[name] – clicks on what stands on the page under this name: the number of a product such as B0AB12CD34 opens \
it, an option such as a colour or a size chooses it, and there are the buttons Next >, < Prev, Back to Search, \
Description, Features, Reviews and Buy Now

Find a product of the wanted kind that costs no more than allowed, click on every option that the wish names – the \
page does not show what you have chosen – and then click[Buy Now]. This ends the errand: what you have bought by then \
counts. What cannot be clicked leaves the page as it is.""",
    (
        ExampleStep(
            "WebShop [SEP] Instruction: [SEP] Find me a soft wool scarf with color: green, and price lower than 30.00 "
            "dollars [SEP] Search",
            "I search for the product with its most telling words.",
            "search[soft wool scarf green]",
        ),
        ExampleStep(
            "Instruction: [SEP] … [SEP] Back to Search [SEP] Page 1 (Total results: 50) [SEP] Next > [SEP] B0AAA11111 "
            "[SEP] Soft Wool Scarf for Winter [SEP] $18.50 [SEP] B0BBB22222 [SEP] Cotton Shawl [SEP] $12.00",
            "The first one is a wool scarf and cheap enough.",
            "click[B0AAA11111]",
        ),
        ExampleStep(
            "Instruction: [SEP] … [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] grey [SEP] green [SEP] Soft Wool "
            "Scarf for Winter [SEP] Price: $18.50 [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now",
            "It comes in green, which is wanted; I choose that before I buy.",
            "click[green]",
        ),
    ),
)

COMMAND_FORMS = (
    CommandForm(
        "search",
        "looks for products, from any page",
        "search[red cotton shirt]",
        lambda observation, info: [f"search[{' '.join(info['goal'].split())}]"],
    ),
)
"""Commands that hold free text."""
