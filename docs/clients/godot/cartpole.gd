# CartPole as a program of its own, which asks Headrace for each action, from Godot's main loop.
#
#     headrace up --env remote --env.port 7654
#     godot3-server --path docs/clients/godot -s cartpole.gd ws://127.0.0.1:7654
#
# For a simulator of your own replace CartPole: its two spaces, reset and step. In a game this is a Node, with _process in place
# of _idle; where the engine's physics are the simulator, apply the action at once and send the outcome of the next
# _physics_process.
#
# Tested with Godot 3.2.3, as Debian 12 has it. Godot 4 calls the same by other names: WebSocketPeer (poll, get_ready_state,
# send_text) in place of WebSocketClient and its signals, JSON.stringify and JSON.parse_string, FileAccess.open,
# PackedFloat32Array(…).to_byte_array(), randf_range, Time.get_ticks_msec, and _process in place of _idle.

extends SceneTree

const FIRST_PAUSE = 0.5  # seconds between two attempts to connect
const LONGEST_PAUSE = 10.0


# The simulator: the physics of Gymnasium's CartPole-v1.
class CartPole:
	const OBSERVATION = {"kind": "box", "shape": [4]}
	const ACTION = {"kind": "discrete", "n": 2}

	var state = []  # position and speed of the cart, angle and spin of the pole
	var terminated = false
	var truncated = false  # a limit cut the episode off
	var steps = 0

	# Begins an episode.
	func reset():
		state = [rand_range(-0.05, 0.05), rand_range(-0.05, 0.05), rand_range(-0.05, 0.05), rand_range(-0.05, 0.05)]
		terminated = false
		truncated = false
		steps = 0

	# Returns the reward.
	func step(action):
		var x = state[0]
		var speed = state[1]
		var angle = state[2]
		var spin = state[3]
		var force = 10.0 if action == 1 else -10.0
		var push = (force + 0.05 * spin * spin * sin(angle)) / 1.1
		var spin_change = (9.8 * sin(angle) - cos(angle) * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos(angle) * cos(angle) / 1.1))
		var speed_change = push - 0.05 * spin_change * cos(angle) / 1.1
		state = [x + 0.02 * speed, speed + 0.02 * speed_change, angle + 0.02 * spin, spin + 0.02 * spin_change]
		steps += 1
		terminated = abs(state[0]) > 2.4 or abs(state[2]) > deg2rad(12)
		truncated = steps >= 500 and not terminated
		return 1.0


var simulator = CartPole.new()
var address = "ws://127.0.0.1:7654"
var client = null  # null between two connections
var why = ""  # a connection ended
var again = true  # it may be made anew
var pause = FIRST_PAUSE
var next_attempt = 0  # in milliseconds, as get_ticks_msec has them


func _init():
	randomize()
	OS.low_processor_usage_mode_sleep_usec = 20  # in each turn of the loop; a server without a window sleeps for 7 ms by itself
	for argument in OS.get_cmdline_args():
		if argument.begins_with("ws://") or argument.begins_with("wss://"):
			address = argument


# One turn of the main loop; true ends it.
func _idle(_delta):
	if client != null:
		client.poll()  # calls the functions below
	elif OS.get_ticks_msec() >= next_attempt:
		connect_anew()
	return false


# ---- the connection


func connect_anew():
	why = "nothing answers there"
	client = WebSocketClient.new()
	client.connect("connection_established", self, "on_open")
	client.connect("connection_error", self, "on_end", [], CONNECT_DEFERRED)
	client.connect("connection_closed", self, "on_end", [], CONNECT_DEFERRED)
	client.connect("data_received", self, "on_data")
	if client.connect_to_url(address) != OK:
		on_end()


func send(message):
	client.get_peer(1).put_packet(JSON.print(message).to_utf8())


func on_open(_protocol):
	why = "the connection broke"
	client.get_peer(1).set_write_mode(WebSocketPeer.WRITE_MODE_TEXT)
	send({"token": token(), "observation": CartPole.OBSERVATION, "action": CartPole.ACTION, "name": "cartpole.gd"})


func on_end(_clean = false):
	client = null
	if not again:
		printerr("Headrace ends this: " + why)
		quit(1)
		return
	print("%s: %s; again in %s s" % [address, why, pause])
	next_attempt = OS.get_ticks_msec() + int(1000 * pause)
	pause = min(2 * pause, LONGEST_PAUSE)


func on_data():
	var answer = JSON.parse(client.get_peer(1).get_packet().get_string_from_utf8()).result
	if answer.has("action"):
		send(outcome(answer["action"]))
	elif answer.has("close"):
		why = answer["close"]
		again = answer["again"]
	else:  # a welcome, or in place of an action: a new episode is wanted
		if answer.has("welcome"):
			print("connected to " + address)
			pause = FIRST_PAUSE
		simulator.reset()
		send({"observation": raw(simulator.state)})


func token():
	var given = OS.get_environment("HEADRACE_TOKEN")
	var folder = OS.get_environment("XDG_CONFIG_HOME")
	if given:
		return given
	var file = File.new()
	file.open((folder if folder else OS.get_environment("HOME") + "/.config") + "/headrace/token", File.READ)
	return file.get_line()


# ---- messages


# Takes the action, and returns what to send.
func outcome(action):
	var message = {"reward": simulator.step(int(action))}
	message["terminated"] = simulator.terminated
	message["truncated"] = simulator.truncated
	message["final_observation"] = raw(simulator.state)
	if simulator.terminated or simulator.truncated:
		simulator.reset()
	message["observation"] = raw(simulator.state)
	return message


# Numbers as 32-bit floats, in base64: JSON.print would round them to six digits.
func raw(numbers):
	var buffer = StreamPeerBuffer.new()
	for number in numbers:
		buffer.put_float(number)
	return Marshalls.raw_to_base64(buffer.data_array)
