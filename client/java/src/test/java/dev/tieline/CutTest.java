package dev.tieline;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.Gson;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The recorded append turn of a server, which is gone after so many bytes. */
class CutTest {
    /** What a server sent after it had so many messages of the client. */
    record Chunk(int after, String bytes) {
        byte[] decoded() {
            return Base64.getDecoder().decode(bytes);
        }
    }

    private static Chunk[] recorded() throws IOException {
        try (var reader = new InputStreamReader(
                CutTest.class.getResourceAsStream("/append_turn.json"), StandardCharsets.UTF_8)) {
            return new Gson().fromJson(reader, Chunk[].class);
        }
    }

    @Test
    @Timeout(value = 600, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
    void aTurnThatIsCutAnywhere() throws Exception {
        var chunks = recorded();
        int total = IntStream.range(0, chunks.length).map(at -> chunks[at].decoded().length).sum();
        int step = Integer.getInteger("cut.step", 1); // A larger one is for a quick look.
        for (int cut = 0; cut < total; cut += step) {
            cutAt(chunks, cut);
        }
        assertTrue(cutAt(chunks, total), "the whole turn");
    }

    /** Says whether the turn was whole; if not it must have ended with a typed error. */
    private static boolean cutAt(Chunk[] chunks, int cut) throws Exception {
        var runs = new AtomicInteger();
        var tool = new LocalTool("get_weather", "Says the weather in a city.", "{\"type\": \"object\"}", arguments -> {
            runs.incrementAndGet();
            return "4 degrees and rain";
        });
        try (var listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            var playing = new Thread(() -> play(listener, chunks, cut));
            playing.start();
            try (var client = Client.builder("127.0.0.1:" + listener.getLocalPort()).build();
                    var connection = client.connect()) {
                var response = connection.ask("What is the weather in Oslo?", tool);
                assertEquals("It is 4 degrees and rain.", Tieline.text(response), "cut at " + cut);
                return true;
            } catch (ConnectionLostException lost) {
                return false;
            } finally {
                assertTrue(runs.get() <= 1, "the tool ran " + runs + " times");
                listener.close();
                playing.join();
            }
        }
    }

    private static void play(ServerSocket listener, Chunk[] chunks, int bytes) {
        try (var socket = listener.accept()) {
            var heard = new Semaphore(0);
            var listening = new Thread(() -> count(socket, heard));
            listening.start();
            int said = 0;
            for (var chunk : chunks) {
                heard.acquire(chunk.after() - said);
                said = chunk.after();
                var part = Math.min(bytes, chunk.decoded().length);
                socket.getOutputStream().write(chunk.decoded(), 0, part);
                bytes -= part;
                if (part < chunk.decoded().length) {
                    socket.close();
                    break;
                }
            }
            listening.join(); // All was said: until the client goes.
        } catch (IOException | InterruptedException e) {
            // The client has gone first.
        }
    }

    /** Counts what the client says: the frames with data. */
    private static void count(Socket socket, Semaphore heard) {
        try {
            var in = new DataInputStream(socket.getInputStream());
            in.readFully(new byte[24]); // The preface.
            while (true) {
                int lengthAndType = in.readInt();
                in.readFully(new byte[5]);
                in.readFully(new byte[lengthAndType >>> 8]);
                if ((lengthAndType & 0xff) == 0 && lengthAndType >>> 8 > 0) {
                    heard.release();
                }
            }
        } catch (IOException e) {
            heard.release(1000); // It has gone.
        }
    }
}
