"""The instructions of TravelPlanner."""

from roleagent.env_card import Instructions

INSTRUCTIONS = Instructions(
    """\
You plan a trip from the given information: flights with their numbers, drives, restaurants, attractions and \
accommodations. Everything in the plan is in that information. Your command is the whole plan, a JSON list with one \
object per day and these keys:
days – the number of the day, from 1
current_city – the city, or "from A to B" on a day of travel
transportation – "Flight Number: F0123456, from A to B, Departure Time: …, Arrival Time: …", or "Self-driving, from A \
to B, …", or "Taxi, from A to B, …"
breakfast, lunch, dinner – "Name, City"
attraction – "Name, City;Name, City;"
accommodation – "Name, City"
What is not needed is "-", such as the accommodation of the last day. Prices are per person for flights and meals, per \
night and room for accommodations, and per car for drives: 5 people fit into an own car, 4 into a taxi.""",
    form="The command is the plan.",
)
