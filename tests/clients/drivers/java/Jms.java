import com.fasterxml.jackson.databind.JsonNode;
import jakarta.jms.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.apache.qpid.jms.JmsTransactionInDoubtException;

/** Qpid JMS, which signs in by SASL PLAIN and connects again by itself. */
final class Jms {
    private static final int INDIVIDUAL_ACKNOWLEDGE = 101;
    private static final List<String> OUTCOMES = List.of("", "accept", "reject", "release", "modify", "defer");
    private static final long WAIT_MS = 20_000;

    private final Connection connection;
    private final Session session;
    private final Map<String, MessageConsumer> consumers = new HashMap<>();
    private final List<Message> deliveries = new ArrayList<>();
    private Session transacted;

    private Jms() throws JMSException {
        String authority = System.getenv("HOST") + ":" + System.getenv("PORT");
        String remote = switch (Lines.TRANSPORT) {
            case "tcp" -> "amqp://" + authority;
            case "websocket" -> "amqpwss://" + authority + "/$servicebus/websocket";
            default -> "amqps://" + authority;
        };
        String uri = "failover:(" + remote + ")?jms.prefetchPolicy.all=0&failover.reconnectDelay=50";
        connection = new JmsConnectionFactory(System.getenv("KEY_NAME"), System.getenv("KEY"), uri).createConnection();
        connection.start();
        session = connection.createSession(false, INDIVIDUAL_ACKNOWLEDGE);
    }

    private static Object send(Session session, JsonNode given) throws JMSException {
        BytesMessage message = session.createBytesMessage();
        message.writeBytes(given.get("body").asText().getBytes(StandardCharsets.UTF_8));
        try (var producer = session.createProducer(session.createQueue(given.get("to").asText()))) {
            producer.send(message);
        }
        return null;
    }

    private static String body(Message message) throws JMSException {
        return message.isBodyAssignableTo(String.class)
            ? message.getBody(String.class)
            : new String(message.getBody(byte[].class), StandardCharsets.UTF_8);
    }

    private Object receive(JsonNode given) throws JMSException {
        String path = given.get("path").asText();
        if (!consumers.containsKey(path)) {
            consumers.put(path, session.createConsumer(session.createQueue(path)));
        }
        Message message = consumers.get(path).receive(WAIT_MS);
        deliveries.add(message);
        Map<String, Object> got = new HashMap<>();
        got.put("delivery", deliveries.size() - 1);
        got.put("body", body(message));
        got.put("count", message.getIntProperty("JMSXDeliveryCount") - 1);
        got.put("ttl", message.getJMSExpiration() - message.getJMSTimestamp());
        List<?> names = Collections.list(message.getPropertyNames());
        got.put("properties", names.stream().filter(name -> !name.toString().startsWith("JMS")).count());
        return got;
    }

    private Message settled(JsonNode given, String how) throws JMSException {
        Message message = deliveries.get(given.get("delivery").asInt());
        message.setIntProperty("JMS_AMQP_ACK_TYPE", OUTCOMES.indexOf(how));
        message.acknowledge();
        return message;
    }

    private Object settle(JsonNode given) throws JMSException {
        settled(given, given.get("how").asText());
        return null;
    }

    private Object settleThenClose(JsonNode given) throws JMSException {
        settled(given, "accept");
        connection.close();
        return null;
    }

    /** Receive a delivery again in a session with a transaction, which takes messages of one entity. */
    private Object beginExchange(JsonNode given) throws JMSException {
        Message first = settled(given, "release");
        transacted = connection.createSession(true, Session.SESSION_TRANSACTED);
        try (var consumer = transacted.createConsumer(first.getJMSDestination())) {
            consumer.receive(WAIT_MS);
        }
        if (given.has("to")) {
            send(transacted, given);
        }
        return null;
    }

    private Object endExchange(JsonNode given) throws JMSException {
        try (Session ending = transacted) {
            if (!given.get("commits").asBoolean()) {
                ending.rollback();
                return "aborted";
            }
            ending.commit();
            return "committed";
        } catch (JmsTransactionInDoubtException refused) {
            return "refused";
        }
    }

    private Object browse(JsonNode given) throws JMSException {
        List<String> found = new ArrayList<>();
        try (var browser = session.createBrowser(session.createQueue(given.get("path").asText()))) {
            for (Object each : Collections.list(browser.getEnumeration())) {
                found.add(body((Message) each));
            }
        }
        return found;
    }

    public static void main(String[] arguments) throws Exception {
        Lines.trust();
        Jms client = new Jms();
        Lines.serve(Map.of(
            "send", given -> send(client.session, given),
            "receive", client::receive,
            "settle", client::settle,
            "settle-then-close", client::settleThenClose,
            "browse", client::browse,
            "begin-exchange", client::beginExchange,
            "end-exchange", client::endExchange));
    }
}
