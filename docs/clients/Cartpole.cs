// CartPole as a program of its own that serves Headrace: it resets and steps when it is told to.
//
//     headrace up --env remote --env.port 7654
//     mcs Cartpole.cs -r:System.dll && mono Cartpole.exe ws://127.0.0.1:7654        (also: dotnet run)
//
// For a simulator of your own replace CartPole: its two spaces, Reset and Step. One connection is one environment: for more of
// them start the program more often, or connect from more threads.

using System;
using System.Globalization;
using System.IO;
using System.Net;
using System.Net.Sockets;
using System.Net.WebSockets;
using System.Text;
using System.Text.RegularExpressions;
using System.Threading;

// The simulator: the physics of Gymnasium's CartPole-v1.
class CartPole
{
    public const string Observation = "{\"kind\": \"box\", \"shape\": [4]}";
    public const string Action = "{\"kind\": \"discrete\", \"n\": 2}";

    public double[] State { get; private set; } // position and speed of the cart, angle and spin of the pole
    public bool Terminated { get; private set; }
    public bool Truncated { get; private set; } // a limit cut the episode off
    private Random random = new Random();
    private int steps;

    // Begins an episode. The same seed begins the same one.
    public void Reset(int? seed)
    {
        if (seed != null) random = new Random(seed.Value);
        State = new double[4];
        for (int i = 0; i < 4; i++) State[i] = random.NextDouble() * 0.1 - 0.05;
        Terminated = Truncated = false;
        steps = 0;
    }

    // Returns the reward.
    public double Step(int action)
    {
        double x = State[0], speed = State[1], angle = State[2], spin = State[3];
        double force = action == 1 ? 10 : -10, sin = Math.Sin(angle), cos = Math.Cos(angle);
        double push = (force + 0.05 * spin * spin * sin) / 1.1;
        double spinChange = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3 - 0.1 * cos * cos / 1.1));
        double speedChange = push - 0.05 * spinChange * cos / 1.1;
        State = new[] { x + 0.02 * speed, speed + 0.02 * speedChange, angle + 0.02 * spin, spin + 0.02 * spinChange };
        steps++;
        Terminated = Math.Abs(State[0]) > 2.4 || Math.Abs(State[2]) > 12 * Math.PI / 180;
        Truncated = steps >= 500 && !Terminated;
        return 1;
    }
}

// Headrace has said why, and wants this program to stay away.
class Refused : Exception
{
    public Refused(string why) : base(why) { }
}

// Texts of JSON over WebSocket.
class Connection : IDisposable
{
    private readonly ClientWebSocket socket = new ClientWebSocket();
    private readonly byte[] buffer = new byte[65536];

    public Connection(string address)
    {
        socket.ConnectAsync(new Uri(address), CancellationToken.None).Wait();
    }

    public void Send(string text)
    {
        var data = new ArraySegment<byte>(Encoding.UTF8.GetBytes(text));
        socket.SendAsync(data, WebSocketMessageType.Text, true, CancellationToken.None).Wait();
    }

    // The next message, which is a map without further maps but for the welcome. Raises Refused.
    public string Receive()
    {
        int size = 0;
        WebSocketReceiveResult part;
        do
        {
            var room = new ArraySegment<byte>(buffer, size, buffer.Length - size);
            part = socket.ReceiveAsync(room, CancellationToken.None).Result;
            size += part.Count;
        } while (!part.EndOfMessage);
        if (part.MessageType == WebSocketMessageType.Close) throw new IOException("Headrace has closed the connection");
        string text = Encoding.UTF8.GetString(buffer, 0, size);
        string why = Value(text, "close");
        if (why == null) return text;
        throw Value(text, "again") == "true" ? new IOException(why) : (Exception)new Refused(why);
    }

    // What a map of JSON has for a key, as text; null where it has none. Other actions than numbers need a real parser.
    public static string Value(string json, string key)
    {
        var found = Regex.Match(json, "\"" + key + "\":(?:\"((?:[^\"\\\\]|\\\\.)*)\"|([^,}]*))");
        return !found.Success ? null : found.Groups[1].Success ? Regex.Unescape(found.Groups[1].Value) : found.Groups[2].Value;
    }

    public void Dispose()
    {
        socket.Dispose();
    }
}

static class Program
{
    const double FirstPause = 0.5, LongestPause = 10; // seconds between two attempts to connect

    // Resets and steps the simulator as it is told to, until the connection ends.
    static void Play(Connection connection, CartPole simulator)
    {
        while (true)
        {
            string order = connection.Receive();
            string action = Connection.Value(order, "action"), seed = Connection.Value(order, "seed");
            string outcome = "";
            if (action == null)
                simulator.Reset(seed == null ? (int?)null : (int)(long.Parse(seed) % int.MaxValue));
            else
                outcome = ", \"reward\": " + Number(simulator.Step(int.Parse(action)))
                    + ", \"terminated\": " + Boolean(simulator.Terminated) + ", \"truncated\": " + Boolean(simulator.Truncated);
            string observation = string.Join(", ", Array.ConvertAll(simulator.State, Number));
            connection.Send("{\"observation\": [" + observation + "]" + outcome + "}");
        }
    }

    static bool Broken(Exception error)
    {
        return error is IOException || error is WebException || error is SocketException || error is WebSocketException;
    }

    static string Boolean(bool value)
    {
        return value ? "true" : "false";
    }

    static string Number(double value)
    {
        return value.ToString("R", CultureInfo.InvariantCulture);
    }

    static string Token()
    {
        string folder = Environment.GetEnvironmentVariable("XDG_CONFIG_HOME");
        if (string.IsNullOrEmpty(folder)) folder = Path.Combine(Environment.GetEnvironmentVariable("HOME"), ".config");
        string given = Environment.GetEnvironmentVariable("HEADRACE_TOKEN");
        return string.IsNullOrEmpty(given) ? File.ReadAllText(Path.Combine(folder, "headrace", "token")).Trim() : given;
    }

    static int Main(string[] arguments)
    {
        string address = arguments.Length > 0 ? arguments[0] : "ws://127.0.0.1:7654";
        string hello = ", \"mode\": \"serve\", \"name\": \"Cartpole.cs\", \"observation\": " + CartPole.Observation
            + ", \"action\": " + CartPole.Action + "}";
        for (double pause = FirstPause; ; pause = Math.Min(2 * pause, LongestPause))
        {
            try
            {
                using (var connection = new Connection(address))
                {
                    connection.Send("{\"token\": \"" + Token() + "\"" + hello);
                    connection.Receive();
                    Console.WriteLine("connected to " + address);
                    pause = FirstPause;
                    Play(connection, new CartPole());
                }
            }
            catch (Exception error) when (error.GetBaseException() is Refused)
            {
                Console.Error.WriteLine("Headrace ends this: " + error.GetBaseException().Message);
                return 1;
            }
            catch (Exception error) when (Broken(error.GetBaseException()))
            {
                Console.WriteLine(address + ": " + error.GetBaseException().Message + "; again in " + Number(pause) + " s");
            }
            Thread.Sleep((int)(1000 * pause));
        }
    }
}
