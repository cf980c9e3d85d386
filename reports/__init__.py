"""What a person sees of it all: reports of runs, live or written out, a look at the machine, a game to play oneself."""
