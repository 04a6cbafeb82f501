import com.azure.core.amqp.AmqpTransportType;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.fasterxml.jackson.databind.*;
import java.io.*;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.*;

/** Requests as JSON lines on standard input, answers as JSON lines on standard output. */
final class Lines {
    static final String TRANSPORT = System.getenv().getOrDefault("TRANSPORT", "tls");

    /** An operation of a client; its result is written as JSON. */
    interface Operation {
        Object answer(JsonNode given) throws Exception;
    }

    /** Answer {"do": name, ...its arguments} with {"result": …} or {"error": …}, until standard input ends. */
    static void serve(Map<String, Operation> operations) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // what a library prints
        ObjectMapper json = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode given = json.readTree(line);
            Map<String, Object> answer = new HashMap<>();
            try {
                answer.put("result", operations.get(given.get("do").asText()).answer(given));
            } catch (Exception | LinkageError error) { // the test judges it
                answer.put("error", error.toString());
            }
            answers.println(json.writeValueAsString(answer));
        }
        System.exit(0); // a library may wait for its threads
    }

    /** Return an argument, or null where it is absent or null. */
    static String text(JsonNode given, String name) {
        return given.hasNonNull(name) ? given.get(name).asText() : null;
    }

    /** Return Azure's connection string: plain TCP with its last part, TLS or WebSocket without it. */
    static String connectionString() {
        String given = System.getenv("CONNECTION_STRING");
        return TRANSPORT.equals("tcp") ? given : given.replace(";UseDevelopmentEmulator=true", "");
    }

    static AmqpTransportType transport() {
        return TRANSPORT.equals("websocket") ? AmqpTransportType.AMQP_WEB_SOCKETS : AmqpTransportType.AMQP;
    }

    /** Return what the tests see of a message of Azure's client. */
    static Map<String, Object> received(int delivery, ServiceBusReceivedMessage message) {
        Map<String, Object> got = new HashMap<>();
        got.put("delivery", delivery);
        got.put("body", message.getBody().toString());
        got.put("count", message.getDeliveryCount());
        got.put("session", message.getSessionId());
        got.put("properties", message.getApplicationProperties().size());
        got.put("ttl", message.getTimeToLive() == null ? null : message.getTimeToLive().toMillis());
        got.put("partition", message.getRawAmqpMessage().getMessageAnnotations().get("x-opt-partition-id"));
        return got;
    }

    /** Write a trust store with the certificate authority of the emulator, and make it the JVM's. */
    static void trust() throws Exception {
        String caFile = System.getenv("CA_FILE");
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        try (InputStream pem = Files.newInputStream(Path.of(caFile))) {
            store.setCertificateEntry("emulator", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        Path trusted = Path.of(caFile + "." + ProcessHandle.current().pid() + ".p12");
        try (OutputStream out = Files.newOutputStream(trusted)) {
            store.store(out, "changeit".toCharArray());
        }
        System.setProperty("javax.net.ssl.trustStore", trusted.toString());
        System.setProperty("javax.net.ssl.trustStorePassword", "changeit");
    }
}
